// Kubernetes and etcd in one executable: what it is depends on the name it is called by (or on its first argument).
//
// One link step instead of eight, and one file to copy into a node image.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// command makes a program of a cobra command.
func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

var programs = map[string]func() int{
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
	"kubeadm": func() int {
		if kubeadm.Run() != nil {
			return 1 // it has printed the error
		}
		return 0
	},
	"etcd": func() int { etcdmain.Main(os.Args); return 0 },
}

func main() {
	if filepath.Base(os.Args[0]) == "kube" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	program, known := programs[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: kube PROGRAM [ARGUMENTS], or a link to it named after one of", slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	os.Exit(program())
}
