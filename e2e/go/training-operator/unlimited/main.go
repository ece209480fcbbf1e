// Command unlimited runs the training-operator's controller of TFJobs without its client's limit of 20 requests a
// second, so that a benchmark compares operators and not a throttle. It takes the flags that the harness gives to the
// operator itself; webhook and certificates are left out, as a benchmark registers none.
package main

import (
	"flag"
	"log"

	"github.com/go-logr/logr"
	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/tensorflow"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	metrics := flag.String("metrics-bind-address", ":8080", "address of the metrics")
	probes := flag.String("health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	threads := flag.Int("controller-threads", 1, "jobs reconciled at a time")
	qps := flag.Float64("kube-api-qps", 1000, "API requests a second")
	flag.String("enable-scheme", "tfjob", "only tfjob")
	flag.Int("webhook-server-port", 0, "not used: there is no webhook")
	flag.Parse()

	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeflow.AddToScheme(scheme))
	config := ctrl.GetConfigOrDie()
	config.QPS, config.Burst = float32(*qps), int(*qps)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: *metrics},
		HealthProbeBindAddress: *probes,
	})
	check(err)
	reconciler := tensorflow.NewReconciler(manager, common.GenNonGangSchedulerSetupFunc())
	check(reconciler.SetupWithManager(manager, *threads))
	check(manager.AddHealthzCheck("healthz", healthz.Ping))
	check(manager.AddReadyzCheck("readyz", healthz.Ping))
	check(manager.Start(ctrl.SetupSignalHandler()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
