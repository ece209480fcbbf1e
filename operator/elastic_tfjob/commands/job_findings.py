"""What a TFJob's manifest means, and what in it cannot work. Pure."""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal

from elastic_tfjob.api.annotations import ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.crd import job_schema
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.api.strict import Strict, without_nulls
from elastic_tfjob.api.tfjob import CONTAINER, MAX_NAME, PORT, PORT_NAME, REPLICA_TYPES, InvalidTFJob, TFJobSpec
from elastic_tfjob.api.words import nearest
from elastic_tfjob.controller.job.checkpoint_place import clean, mount_of
from elastic_tfjob.controller.job.inject import trainer_of, without_command
from elastic_tfjob.controller.job.pods import chief_of, general_name, render_service
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.memory import without_effect
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.request import JobRequest, job_request

__all__ = ["Finding", "about_job", "claim_of_checkpoints", "job_as_created", "schema_of_v1"]

Level = Literal["ok", "warning", "error"]

_RESTARTS: Final = ("Never", "OnFailure", "Always", "ExitCode")
_CLEANUPS: Final = ("None", "Running", "All")
_SUCCESSES: Final = ("", "AllWorkers")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME: Final = re.compile(r"(?=[a-z0-9-]{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "ksh")
# Programs that run the command in their last arguments.
_WRAPPERS: Final = (
    *("env", "tini", "dumb-init", "catatonit", "timeout", "nice", "ionice", "nohup", "setsid", "stdbuf", "time"),
    *("busybox", "sudo", "gosu", "su-exec", "chroot", "numactl", "taskset", "unbuffer", "xvfb-run", "conda", "mamba"),
    *("micromamba", "poetry", "pipenv", "uv", "--"),
)
_ENDS_OF_BLOCKS: Final = ("fi", "done", "esac", "}")
# Names of sidecars that run as long as their pod.
_ENDLESS: Final = re.compile(
    r"istio-proxy|linkerd-proxy|envoy|fluent|filebeat|vector$|promtail|logstash|log-?(shipper|agent|collector)|"
    r"cloud-?sql|oauth2?-proxy|datadog|telegraf|otel|jaeger|vault-agent|tensorboard|gcsfuse|dapr|consul-"
)
# Containers that other software injects into pods with a label or an annotation (name, value).
_INJECTED: Final = {
    ("sidecar.istio.io/inject", "true"): "istio-proxy",
    ("linkerd.io/inject", "enabled"): "linkerd-proxy",
    ("dapr.io/enabled", "true"): "daprd",
    ("vault.hashicorp.com/agent-inject", "true"): "vault-agent",
    ("consul.hashicorp.com/connect-inject", "true"): "consul-dataplane",
}
# Read-only volumes.
_READ_ONLY: Final = ("configMap", "secret", "projected", "downwardAPI", "image")
# Volumes that are deleted with their pod, or differ from pod to pod.
_PASSING: Final = {
    "emptyDir": "an emptyDir",
    "gitRepo": "a gitRepo volume",
    "ephemeral": "a generic ephemeral volume",
    "csi": "an inline CSI volume",
}
_HOST_LABEL: Final = "kubernetes.io/hostname"
_LASTING: Final = "mount a volume that outlives the pod and is writable from all nodes, such as a PVC"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: level, subject, message, and what to do."""

    level: Level
    about: str
    text: str
    do: str = ""


def about_job(raw: Mapping[str, Any], now: datetime, notes: Sequence[str] = ()) -> list[Finding]:
    """All findings about a TFJob that need no cluster. `notes` are those on its document. Never raises."""
    findings = [Finding("warning", "file", note) for note in notes]
    findings += _misfits(raw)
    try:
        job = job_as_created(raw, now)
        request, spec = job_request(job), job.spec()
        looked = [
            *_cannot_work(job, spec, request),
            *_names(job, spec, request),
            *_ports(job, spec),
            *_pods(spec),
            *_programs(spec, request),
            *_sidecars(spec, request.elasticity),
            *_checkpoints(spec, request.elasticity.checkpoint_dir),
        ]
        wrong = Elasticity.parse(job.annotations, spec).problems
        looked += _misplaced(raw, job, spec)
        idle = without_effect(request.elasticity, spec)
    except InvalidTFJob as error:
        return [*findings, *(Finding("error", "spec", problem) for problem in error.problems)]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return [*findings, Finding("error", "spec", f"the spec cannot be read: {error}")]
    findings += [
        Finding("error", "annotation", each, "correct the annotation; it is ignored until then") for each in wrong
    ]
    findings += [Finding("warning", "memory", each) for each in idle]
    findings += looked
    findings += _capabilities(request)
    findings += _figures(request)
    return findings


def job_as_created(raw: Mapping[str, Any], now: datetime) -> TFJob:
    """The job as the operator reads it. Raises ValueError."""
    own = {"uid": "check", "resourceVersion": "0", "creationTimestamp": format_time(now)}
    return TFJob.parse(without_nulls({**raw, "metadata": {**raw["metadata"], **own}}))


@cache
def schema_of_v1() -> Strict:
    """The schema of v1. It is cached, because building it takes a second or two."""
    return Strict(job_schema())


def _misfits(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Fields that the API server refuses with strict validation, which is kubectl's default."""
    for misfit in schema_of_v1().misfits(raw):
        do = f"write {misfit.right} instead" if misfit.right else ""
        if misfit.unknown:
            text = f"{misfit.path}: {misfit.text}; kubectl refuses the job, other clients drop the field silently"
            yield Finding("error", "field", text, do or "remove the field")
        else:
            yield Finding("error", "field", f"{misfit.path}: {misfit.text}", do)


def _misplaced(raw: Mapping[str, Any], job: TFJob, spec: TFJobSpec) -> Iterator[Finding]:
    """Annotations of this project in places where they are not read."""
    do = "move it to metadata.annotations of the TFJob"
    places: dict[str, Mapping[str, Any]] = {"metadata.labels": raw["metadata"].get("labels") or {}}
    for name, replica in spec.tf_replica_specs.items():
        for part in ("labels", "annotations"):
            where = f"spec.tfReplicaSpecs[{name}].template.metadata.{part}"
            places[where] = (replica.template.get("metadata") or {}).get(part) or {}
    for where, found in places.items():
        for key in found:
            if str(key).startswith(PREFIX) and str(key).removeprefix(PREFIX) in ANNOTATIONS:
                yield Finding("warning", "annotation", f"{key} is ignored in {where}", do)
    for key in job.annotations:
        prefix, _, name = key.rpartition("/")
        like_ours = "elastic" in prefix or "kubeflow" in prefix or (not prefix and "-" in name)
        if name in ANNOTATIONS and like_ours and f"{prefix}/" != PREFIX:
            yield Finding(
                "warning", "annotation", f"{key} is ignored: its prefix is unknown", f"write {PREFIX}{name} instead"
            )


def _guess(word: str, words: Sequence[str]) -> str:
    known = [each for each in words if each]
    found = nearest(word, known)
    return f"did you mean {found}?" if found is not None else f"allowed: {', '.join(known)}"


def _deciding(spec: TFJobSpec) -> tuple[str, ...]:
    """The replica types whose pods decide whether the job succeeds."""
    chiefs = tuple(name for name in ("Chief", "Master") if name in spec.tf_replica_specs)
    return chiefs or tuple(name for name in ("Worker",) if name in spec.tf_replica_specs)


def _cannot_work(job: TFJob, spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """Values that the API accepts but that have no effect or an unexpected one."""
    types, policy = spec.tf_replica_specs, spec.run_policy
    for name in types:
        if name not in REPLICA_TYPES:
            text = f"{name} is not a known replica type: its pods do not decide whether the job succeeds"
            yield Finding("warning", "replica type", text, _guess(name, REPLICA_TYPES))
    deciding = _deciding(spec)
    if not deciding:
        text = "there is no Chief, Master or Worker, so the job never becomes Running or Succeeded"
        yield Finding("error", "replica type", text, "add a Worker or a Chief")
    elif not any(types[name].count for name in deciding):
        text = f"{' and '.join(deciding)} has 0 replicas, so the job succeeds at once without training"
        yield Finding("warning", "replicas", text, "set replicas to 1 or more")
    for name, replica in types.items():
        if name in ("Chief", "Master") and replica.count > 1:
            yield Finding(
                "warning",
                "replicas",
                f"{name} has {replica.count} replicas, but TensorFlow uses only one",
                "set replicas to 1",
            )
        yield from _restarts(name, name in deciding, replica.restart, replica.template, request)
    if policy.clean_pod_policy is not None and policy.clean_pod_policy not in _CLEANUPS:
        text = f"{policy.clean_pod_policy!r} is not a policy of v1: all pods are deleted when the job ends"
        yield Finding("warning", "cleanPodPolicy", text, _guess(policy.clean_pod_policy, _CLEANUPS))
    if (success := spec.success_policy) is not None:
        if success not in _SUCCESSES:
            text = f"{success!r} is not a policy of v1: the job succeeds when worker 0 does"
            yield Finding("warning", "successPolicy", text, _guess(success, _SUCCESSES))
        elif success and spec.has_chief:
            text = f"{success} has no effect: a job with a {deciding[0]} succeeds when the {deciding[0]} does"
            yield Finding("warning", "successPolicy", text, f"remove the policy or the {deciding[0]}")


def _restarts(
    name: str, decides: bool, restart: str, template: Mapping[str, Any], request: JobRequest
) -> Iterator[Finding]:
    about = "restartPolicy"
    if restart not in _RESTARTS:
        text = f"{name}: {restart!r} is not a restart policy: the API server refuses the pods"
        yield Finding("error", about, text, _guess(restart, _RESTARTS))
    elif restart == "Never" and request.stoppable:
        text = f"{name}: with Never (the default), one failed or evicted pod makes the elastic job fail"
        yield Finding("warning", about, text, "set restartPolicy, next to replicas, to OnFailure or ExitCode")
    elif restart == "Always" and decides:
        text = f"{name}: with Always, its pods never succeed, so the job never does"
        yield Finding("warning", about, text, "set restartPolicy to OnFailure")
    inner = (template.get("spec") or {}).get("restartPolicy")
    if inner is not None and inner != restart:
        text = (
            f"{name}: {inner} in the template is ignored; the restartPolicy next to replicas applies, which is "
            f"{restart}"
        )
        yield Finding("warning", about, text, f"set restartPolicy: {inner} next to replicas")


def _names(job: TFJob, spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """Whether the longest name of each type is valid, at the declared size and at the upper bound."""
    for name, replica in spec.tf_replica_specs.items():
        longest = general_name(job.name, name, max(0, replica.count - 1))
        if replica.count and len(longest) > MAX_NAME:
            text = (
                f"{longest} has {len(longest)} characters; a Service name has at most {MAX_NAME}, so it cannot be "
                "created"
            )
            yield Finding(
                "error", "name", text, f"choose a job name that is {len(longest) - MAX_NAME} characters shorter"
            )
        elif not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", longest):
            text = f"{longest} is not a valid Service name; allowed: a-z, digits and -, a letter first"
            yield Finding("error", "name", text, "choose another name for the job or the replica type")
    without = set(Elasticity.parse(job.annotations, spec).problems)
    for problem in request.elasticity.problems:
        if problem not in without:
            yield Finding("warning", "name", problem, "choose a shorter job name or lower bounds")


def _ports(job: TFJob, spec: TFJobSpec) -> Iterator[Finding]:
    """Ports that make a pod or Service invalid, or that TensorFlow does not use as expected."""
    for name, replica in spec.tf_replica_specs.items():
        given = trainer_of(replica.template).get("ports") or ()
        named = {port.get("name") for port in given}
        first = {port.get("name"): port for port in reversed(given)}
        for port in given:
            if not port.get("name"):
                number = port["containerPort"]
                text = f"{name}: port {number} has no name"
                if PORT_NAME not in named and number != PORT:
                    text += f"; TF_CONFIG uses {PORT} instead, because no port is named {PORT_NAME}"
                yield Finding(
                    "warning", "port", text, f"name TensorFlow's port {PORT_NAME}, and other ports differently"
                )
            elif not _PORT_NAME.fullmatch(str(port["name"])):
                text = f"{name}: {port['name']!r} is not a valid port name: the API server refuses the pod"
                yield Finding("error", "port", text, "allowed: 1 to 15 of a-z, digits and -, at least one letter")
            elif sum(port.get("name") == each.get("name") for each in given) > 1 and port != first[port["name"]]:
                text = f"{name}: two ports are named {port['name']}: the API server refuses the pod"
                yield Finding("error", "port", text, "rename one of them")
            elif PORT_NAME not in named and len(given) == 1 and str(port["name"]).startswith(("tf", "tensorflow")):
                text = f"{name}: TF_CONFIG uses port {PORT}, not {port['name']}, because no port is named {PORT_NAME}"
                yield Finding("warning", "port", text, f"name it {PORT_NAME} if TensorFlow should use it")
            if (protocol := port.get("protocol") or "TCP") not in _PROTOCOLS:
                text = f"{name}: {protocol!r} is not a protocol: the API server refuses the pod"
                yield Finding("error", "port", text, _guess(str(protocol), _PROTOCOLS))
            if not 0 < port["containerPort"] < 65_536:
                yield Finding(
                    "error", "port", f"{name}: {port['containerPort']} is not a port number", "allowed: 1 to 65535"
                )
        ports = render_service(job, spec, name, 0)["spec"]["ports"]
        if len(ports) > 1 and not all(port.get("name") for port in ports):
            text = f"{name}: the API server refuses its Services, because each of several ports needs a name"
            yield Finding("error", "port", text, "name each port")
        numbers = [(port.get("protocol", "TCP"), port["port"]) for port in ports]
        if twice := {number for _, number in numbers if numbers.count(("TCP", number)) > 1}:
            text = (
                f"{name}: the API server refuses its Services, because port {', '.join(map(str, twice))} is used twice"
            )
            yield Finding("error", "port", text, f"name TensorFlow's port {PORT_NAME}")


def _pods(spec: TFJobSpec) -> Iterator[Finding]:
    """Why the API server would refuse a pod although it accepts the job."""
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        volumes = {each.get("name") for each in pod.get("volumes") or ()}
        for container in (*replica.containers(), *(pod.get("initContainers") or ())):
            about = f"{name}: container {container.get('name')}"
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes:
                    text = f"{about} mounts volume {mount.get('name')}, which the template does not define: "
                    yield Finding(
                        "error", "volume", f"{text}the API server refuses the pod", "add the volume to the template"
                    )
            resources = container.get("resources") or {}
            requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
            for each, amount in requests.items():
                if each in limits and quantity(amount) > quantity(limits[each]):
                    text = f"{about} requests more {each} ({amount}) than its limit ({limits[each]}): "
                    yield Finding("error", "resources", f"{text}the API server refuses the pod", "raise the limit")
                elif each not in limits and "/" in each:
                    text = f"{about} requests {each} without a limit: the API server refuses the pod"
                    yield Finding("error", "resources", text, f"add {each} to limits")
        labels = (replica.template.get("metadata") or {}).get("labels") or {}
        for key, value in labels.items():
            if not _LABEL.fullmatch(str(value)):
                text = f"{name}: {value!r} is not a valid value of label {key}: the API server refuses the pod"
                yield Finding("error", "label", text, "allowed: up to 63 letters, digits, - _ and .")


def _programs(spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """Whether the launcher can start the programs, and whether signals reach them."""
    injected = request.elasticity.injected(spec) in ("launcher", "both")
    no_command = without_command(spec)
    if injected and no_command:
        text = f"the launcher cannot start {', '.join(no_command)}: the operator does not know the image's entrypoint"
        yield Finding("warning", "launcher", text, "set command in the container tensorflow")
    if not request.elasticity.annotated:
        return
    trainers = {name: trainer_of(replica.template) for name, replica in spec.tf_replica_specs.items()}
    shells = [name for name, trainer in trainers.items() if shell_waits(trainer)]
    if shells:
        text = (
            f"{', '.join(shells)}: a shell starts the program and waits for it. A shell does not forward SIGTERM, so "
            "without a launcher the program ends without saving"
        )
        yield Finding("warning", "shell", text, "start the last command of the script with exec")


def shell_waits(container: Mapping[str, Any]) -> bool:
    """Whether a container's command is a shell that keeps running between the kubelet and the program: its script
    (after `-c`) has several commands and the last one is not `exec`. For a single command, shells replace
    themselves."""
    words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
    if words and posixpath.basename(words[0]) in _WRAPPERS:
        # Words before the shell are options and variables.
        words = words[next((k for k, word in enumerate(words) if posixpath.basename(word) in _SHELLS), 0) :]
    if not words or posixpath.basename(words[0]) not in (*_SHELLS, "su"):
        return False
    flags = [k for k, word in enumerate(words) if k and re.fullmatch(r"-[a-z]*c", word)]
    if not flags or flags[0] + 1 >= len(words):
        return False
    commands = [each for each in _commands(words[flags[0] + 1]) if each not in _ENDS_OF_BLOCKS]
    if len(commands) < 2 or re.match(r"((then|else|do) )?exec ", commands[-1]):
        return False
    return not any(each.startswith("trap ") for each in commands)


def _commands(script: str) -> list[str]:
    """The commands of a shell script, in order."""
    script = re.sub(r"[0-9]?>&[0-9-]?|&>>?", ">", script)  # redirections, where & is not a separator
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ; "), posix=False, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= set(";&|()"):
                found.append([])
            else:
                found[-1].append(token)
    except ValueError:  # unbalanced quotes
        return [script]
    return [" ".join(words) for words in found if words and not words[0].startswith("#")]


def _sidecars(spec: TFJobSpec, elasticity: Elasticity) -> Iterator[Finding]:
    """Containers that keep a pod, and so the job, from ending."""
    if getattr(elasticity, "done_when", "") == "tensorflow-exits":
        return
    do = "make it an init container with restartPolicy: Always"
    if "done-when" in ANNOTATIONS:
        do = f"{PREFIX}done-when: tensorflow-exits, or {do}"
    for name in _deciding(spec):
        template = spec.tf_replica_specs[name].template
        others = [str(each.get("name")) for each in spec.tf_replica_specs[name].containers()]
        others = [each for each in others if each != CONTAINER]
        labels = (template.get("metadata") or {}).get("labels") or {}
        notes = (template.get("metadata") or {}).get("annotations") or {}
        for (key, value), injected in _INJECTED.items():
            if value in (labels.get(key), notes.get(key)):
                others.append(injected)
        for other in dict.fromkeys(others):
            ends = "runs as long as its pod" if _ENDLESS.search(other) else "may outlive the program"
            text = f"{name}: container {other} {ends}; the job ends only when all containers of the pod have ended"
            yield Finding("warning", "sidecar", text, do)


def _capabilities(request: JobRequest) -> Iterator[Finding]:
    """Whether the job is elastic, and what is missing if it is not."""
    elasticity = request.elasticity
    if not elasticity.annotated:
        yield Finding("ok", "elasticity", f"no annotation {PREFIX}...: the job runs as with the training-operator")
        return
    why = (
        f"it has no annotation {PREFIX}checkpoint-dir to restore from"
        if elasticity.checkpoint_dir is None
        else "its annotation rescale is never"
        if elasticity.rescale == "never"
        else "enableDynamicWorker is true"
    )
    if request.elastic:
        bounds = {name: request.bounds(name) for name in request.declared}
        words = ", ".join(f"{name} {low} to {high}" for name, (low, high) in bounds.items() if low != high)
        yield Finding("ok", "elastic", f"the size may change: {words}")
    elif request.stoppable:
        yield Finding(
            "ok", "elastic", "the size is fixed, because no bounds differ; the job may be stopped, moved and resumed"
        )
    else:
        yield Finding(
            "warning", "elastic", f"the job cannot be rescaled, moved or stopped: {why}", "see docs/elastic.md"
        )
    if request.queue:
        more = [f"{name} {request.most_wanted(name)}" for name in request.declared if _could_grow(request, name)]
        growth = (
            f"; {', '.join(more)} only with kueue.growth in the operator's ConfigMap (docs/kueue.md)" if more else ""
        )
        yield Finding(
            "ok",
            "Kueue",
            f"queue {request.queue} admits the job, so it never has more replicas than Kueue admitted{growth}",
        )


def _could_grow(request: JobRequest, name: str) -> bool:
    """Whether the job's annotations allow more replicas of a type than Kueue admits."""
    return request.most_wanted(name) > request.bounds(name)[1]


def _checkpoints(spec: TFJobSpec, directory: str | None) -> Iterator[Finding]:
    """Whether the chief can write checkpoints, and finds them again when its pod is recreated, maybe on another
    node."""
    if directory is None or "://" in (path := directory.removeprefix("file://")):
        return
    about, again = "checkpoint-dir", "a recreated chief (after a stop, move or eviction) starts at step 0"
    if not path.startswith("/"):
        text = f"{path} is relative to the working directory, which is not on a volume: {again}"
        yield Finding("warning", about, text, f"use an absolute path; {_LASTING}")
        return
    at = clean(path)
    name = chief_of(spec)[0]
    chief = spec.tf_replica_specs.get(name)
    if chief is None:
        return
    mount = mount_of(chief.template, at)
    if mount is None:
        others = [each for each, replica in spec.tf_replica_specs.items() if mount_of(replica.template, at) is not None]
        only = f" ({', '.join(others)} has one, but {name} writes the checkpoints)" if others else ""
        yield Finding("warning", about, f"{path} is not on a volume of {name}{only}: {again}", _LASTING)
        return
    volumes = {each.get("name"): each for each in (chief.template.get("spec") or {}).get("volumes") or ()}
    volume = volumes.get(mount.get("name"))
    if volume is None:
        return  # another finding says that the pod is refused
    kind, source = next(((key, value or {}) for key, value in volume.items() if key != "name"), ("emptyDir", {}))
    if mount.get("readOnly") or kind in _READ_ONLY or source.get("readOnly"):
        what = f"a {kind} volume" if kind in _READ_ONLY else "mounted read-only"
        yield Finding("warning", about, f"{path} is {what}: checkpoints cannot be written to it", _LASTING)
    elif kind in _PASSING:
        text = f"{path} is on {_PASSING[kind]}, which is deleted with its pod: {again}"
        yield Finding("warning", about, text, _LASTING)
    elif kind == "hostPath" and not _one_node(chief.template):
        text = f"{path} is on a hostPath volume: on another node the chief starts at step 0"
        yield Finding("warning", about, text, _LASTING)
    if expression := mount.get("subPathExpr"):
        env = trainer_of(chief.template).get("env") or ()
        own: set[str] = set()
        for each in env:  # a variable may refer to earlier ones
            if "fieldRef" in (each.get("valueFrom") or {}) or own & _named_in(each.get("value")):
                own.add(str(each.get("name")))
        if own & _named_in(expression):
            text = f"{path} is below subPathExpr {expression}, which may differ in the next pod: {again}"
            yield Finding("warning", about, text, "use subPath, or a subPathExpr that is the same in all pods")


def _named_in(text: object) -> set[str]:
    """The variables that a value refers to, as `$(NAME)`."""
    return set(re.findall(r"\$\(([-\w.]+)\)", str(text)))


def claim_of_checkpoints(spec: TFJobSpec, directory: str | None) -> tuple[str, int]:
    """The PersistentVolumeClaim that holds the checkpoints (empty: none), and how many pods mount it."""
    if directory is None or "://" in (path := directory.removeprefix("file://")) or not path.startswith("/"):
        return "", 0
    chief = spec.tf_replica_specs.get(chief_of(spec)[0])
    mount = mount_of(chief.template, clean(path)) if chief is not None else None
    if chief is None or mount is None:
        return "", 0
    claim = _claims(chief.template).get(mount.get("name"), "")
    sharing = (
        replica.count for replica in spec.tf_replica_specs.values() if claim in _claims(replica.template).values()
    )
    return claim, sum(sharing) if claim else 0


def _claims(template: Mapping[str, Any]) -> dict[Any, str]:
    volumes = (template.get("spec") or {}).get("volumes") or ()
    return {
        each.get("name"): str(each["persistentVolumeClaim"].get("claimName"))
        for each in volumes
        if each.get("persistentVolumeClaim")
    }


def _one_node(template: Mapping[str, Any]) -> bool:
    """Whether the template binds all pods to one node by its name."""
    pod = template.get("spec") or {}
    if pod.get("nodeName") or _HOST_LABEL in (pod.get("nodeSelector") or {}):
        return True
    node = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    return bool(required) and all(
        any(
            each.get("key") in (_HOST_LABEL, "metadata.name")
            and each.get("operator") == "In"
            and len(each.get("values") or ()) == 1
            for part in ("matchExpressions", "matchFields")
            for each in term.get(part) or ()
        )
        for term in required
    )


def _figures(request: JobRequest) -> Iterable[Finding]:
    elasticity = request.elasticity
    if elasticity.annotated and not elasticity.reports(request.spec):
        text = "its pods do not report steps, so progress and expected end are unknown"
        yield Finding("warning", "reports", text, f"set {PREFIX}inject: sidecar, or a checkpoint-dir")
    if elasticity.deadline is not None and elasticity.total_steps is None and elasticity.estimated_duration is None:
        text = "whether it will be met is unknown until the program reports its number of steps"
        yield Finding("warning", "deadline", text, f"set {PREFIX}total-steps or {PREFIX}estimated-duration")
    if none := [name for name, asked in request.requests.items() if not asked.cpu_millicores]:
        text = f"{', '.join(none)} request no CPU, so the scheduler plans with none"
        yield Finding("warning", "requests", text, "set resources.requests.cpu in the container tensorflow")
