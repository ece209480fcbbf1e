"""What a TFJob's own words come to, and what in them cannot work. Pure."""

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
from elastic_tfjob.api.strict import Strict, without_nulls
from elastic_tfjob.api.tfjob import CONTAINER, MAX_NAME, PORT, PORT_NAME, REPLICA_TYPES, InvalidTFJob, TFJobSpec
from elastic_tfjob.api.words import nearest
from elastic_tfjob.controller.job.checkpoint_place import clean, mount_of
from elastic_tfjob.controller.job.inject import trainer_of, without_command
from elastic_tfjob.controller.job.pods import chief_of, general_name, render_service
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.quantities import quantity
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.request import JobRequest, terms

__all__ = ["Finding", "about_job", "claim_of_checkpoints", "job_as_created", "schema_of_v1"]

Level = Literal["ok", "warning", "error"]

_RESTARTS: Final = ("Never", "OnFailure", "Always", "ExitCode")
_CLEANUPS: Final = ("None", "Running", "All")
_SUCCESSES: Final = ("", "AllWorkers")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME: Final = re.compile(r"(?=[a-z0-9-]{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "ksh")
# Programs that start what their last arguments say.
_WRAPPERS: Final = (
    *("env", "tini", "dumb-init", "catatonit", "timeout", "nice", "ionice", "nohup", "setsid", "stdbuf", "time"),
    *("busybox", "sudo", "gosu", "su-exec", "chroot", "numactl", "taskset", "unbuffer", "xvfb-run", "conda", "mamba"),
    *("micromamba", "poetry", "pipenv", "uv", "--"),
)
_ENDS_OF_BLOCKS: Final = ("fi", "done", "esac", "}")
# Containers that go on for as long as their pod does.
_ENDLESS: Final = re.compile(
    r"istio-proxy|linkerd-proxy|envoy|fluent|filebeat|vector$|promtail|logstash|log-?(shipper|agent|collector)|"
    r"cloud-?sql|oauth2?-proxy|datadog|telegraf|otel|jaeger|vault-agent|tensorboard|gcsfuse|dapr|consul-"
)
# What others add to pods that have a label or an annotation, by its name and value.
_INJECTED: Final = {
    ("sidecar.istio.io/inject", "true"): "istio-proxy",
    ("linkerd.io/inject", "enabled"): "linkerd-proxy",
    ("dapr.io/enabled", "true"): "daprd",
    ("vault.hashicorp.com/agent-inject", "true"): "vault-agent",
    ("consul.hashicorp.com/connect-inject", "true"): "consul-dataplane",
}
# Volumes that no container can write to.
_READ_ONLY: Final = ("configMap", "secret", "projected", "downwardAPI", "image")
# Volumes that go with their pod, or are another one in each pod.
_PASSING: Final = {
    "emptyDir": "an emptyDir",
    "gitRepo": "a gitRepo volume",
    "ephemeral": "a generic ephemeral volume",
    "csi": "an inline CSI volume",
}
_HOST_LABEL: Final = "kubernetes.io/hostname"
_LASTING: Final = "mount a volume that outlives a pod and can be written from each node, such as a PVC"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do about it."""

    level: Level
    about: str
    text: str
    do: str = ""


def about_job(raw: Mapping[str, Any], now: datetime, notes: Sequence[str] = ()) -> list[Finding]:
    """Everything that can be said of a TFJob without a cluster; `notes` are those on its document. Raises nothing."""
    findings = [Finding("warning", "file", note) for note in notes]
    findings += _misfits(raw)
    try:
        job = job_as_created(raw, now)
        request, spec = terms(job), job.spec()
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
    except InvalidTFJob as error:
        return [*findings, *(Finding("error", "spec", problem) for problem in error.problems)]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return [*findings, Finding("error", "spec", f"it cannot be read: {error}")]
    findings += [Finding("error", "annotation", each, "correct it: it is ignored") for each in wrong]
    findings += looked
    findings += _capabilities(request)
    findings += _figures(request)
    return findings


def job_as_created(raw: Mapping[str, Any], now: datetime) -> TFJob:
    """The job as the operator would read it. Raises ValueError."""
    own = {"uid": "check", "resourceVersion": "0", "creationTimestamp": format_time(now)}
    return TFJob.parse(without_nulls({**raw, "metadata": {**raw["metadata"], **own}}))


@cache
def schema_of_v1() -> Strict:
    """What v1 admits; made once, as it takes a second or two."""
    return Strict(job_schema())


def _misfits(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """What the API server refuses with strict validation, which is kubectl's default."""
    for misfit in schema_of_v1().misfits(raw):
        do = f"write {misfit.right}" if misfit.right else ""
        if misfit.unknown:
            text = f"{misfit.path}: {misfit.text}: kubectl refuses the job, other clients drop the field silently"
            yield Finding("error", "field", text, do or "remove it")
        else:
            yield Finding("error", "field", f"{misfit.path}: {misfit.text}", do)


def _misplaced(raw: Mapping[str, Any], job: TFJob, spec: TFJobSpec) -> Iterator[Finding]:
    """Annotations of this project that are where nothing reads them."""
    do = "put it into metadata.annotations of the TFJob"
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
            yield Finding("warning", "annotation", f"{key} is ignored: nothing reads it", f"write {PREFIX}{name}")


def _guess(word: str, words: Sequence[str]) -> str:
    known = [each for each in words if each]
    found = nearest(word, known)
    return f"did you mean {found}?" if found is not None else f"allowed is {', '.join(known)}"


def _deciding(spec: TFJobSpec) -> tuple[str, ...]:
    """The types whose pods decide whether the job has succeeded."""
    chiefs = tuple(name for name in ("Chief", "Master") if name in spec.tf_replica_specs)
    return chiefs or tuple(name for name in ("Worker",) if name in spec.tf_replica_specs)


def _cannot_work(job: TFJob, spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """Words that the API takes, and that mean nothing, or not what was meant."""
    types, policy = spec.tf_replica_specs, spec.run_policy
    for name in types:
        if name not in REPLICA_TYPES:
            text = f"{name} is no replica type that TensorFlow or the operator knows: its pods decide nothing"
            yield Finding("warning", "replica type", text, _guess(name, REPLICA_TYPES))
    deciding = _deciding(spec)
    if not deciding:
        text = "there is no Chief, Master or Worker: the job never runs or succeeds, whatever its pods do"
        yield Finding("error", "replica type", text, "add a Worker or a Chief")
    elif not any(types[name].count for name in deciding):
        text = f"{' and '.join(deciding)} has 0 replicas: the job succeeds at once, and nothing trains"
        yield Finding("warning", "replicas", text, "replicas: 1 or more")
    for name, replica in types.items():
        if name in ("Chief", "Master") and replica.count > 1:
            yield Finding("warning", "replicas", f"{name} has {replica.count} replicas: TensorFlow knows one", "1")
        yield from _restarts(name, name in deciding, replica.restart, replica.template, request)
    if policy.clean_pod_policy is not None and policy.clean_pod_policy not in _CLEANUPS:
        text = f"{policy.clean_pod_policy!r} is none that v1 has: when the job ends, all its pods are deleted"
        yield Finding("warning", "cleanPodPolicy", text, _guess(policy.clean_pod_policy, _CLEANUPS))
    if (success := spec.success_policy) is not None:
        if success not in _SUCCESSES:
            text = f"{success!r} is none that v1 has: the job succeeds when worker 0 does"
            yield Finding("warning", "successPolicy", text, _guess(success, _SUCCESSES))
        elif success and spec.has_chief:
            text = f"{success} does nothing: with a {deciding[0]}, the job succeeds when that does"
            yield Finding("warning", "successPolicy", text, f"leave it out, or leave out the {deciding[0]}")


def _restarts(
    name: str, decides: bool, restart: str, template: Mapping[str, Any], request: JobRequest
) -> Iterator[Finding]:
    about = "restartPolicy"
    if restart not in _RESTARTS:
        text = f"{name}: {restart!r} is none that pods have: the API server refuses them"
        yield Finding("error", about, text, _guess(restart, _RESTARTS))
    elif restart == "Never" and request.stoppable:
        text = f"{name}: with Never (the default) a pod that fails or is evicted ends the elastic job as failed"
        yield Finding("warning", about, text, "restartPolicy: OnFailure or ExitCode, beside replicas")
    elif restart == "Always" and decides:
        text = f"{name}: with Always its pods never succeed, and so the job never does"
        yield Finding("warning", about, text, "restartPolicy: OnFailure")
    inner = (template.get("spec") or {}).get("restartPolicy")
    if inner is not None and inner != restart:
        text = (
            f"{name}: the template's {inner} is ignored: the restartPolicy beside replicas counts, which is {restart}"
        )
        yield Finding("warning", about, text, f"restartPolicy: {inner}, beside replicas")


def _names(job: TFJob, spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """The longest name of each type, at the declared size and at the upper bound."""
    for name, replica in spec.tf_replica_specs.items():
        longest = general_name(job.name, name, max(0, replica.count - 1))
        if replica.count and len(longest) > MAX_NAME:
            text = f"{longest} has {len(longest)} characters: a Service has at most {MAX_NAME}, so it is never made"
            yield Finding("error", "name", text, f"a name for the job that is {len(longest) - MAX_NAME} shorter")
        elif not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", longest):
            text = f"{longest} is no name for a Service: letters from a to z, digits and - are allowed"
            yield Finding("error", "name", text, "another name for the job, or the replica type")
    without = set(Elasticity.parse(job.annotations, spec).problems)
    for problem in request.elasticity.problems:
        if problem not in without:
            yield Finding("warning", "name", problem, "a shorter name for the job, or lower bounds")


def _ports(job: TFJob, spec: TFJobSpec) -> Iterator[Finding]:
    """Ports by which no pod or Service can be made, or by which others than expected are found."""
    for name, replica in spec.tf_replica_specs.items():
        given = trainer_of(replica.template).get("ports") or ()
        named = {port.get("name") for port in given}
        first = {port.get("name"): port for port in reversed(given)}
        for port in given:
            if not port.get("name"):
                number = port["containerPort"]
                text = f"{name}: port {number} has no name"
                if PORT_NAME not in named and number != PORT:
                    text += f": TF_CONFIG does not use it, but {PORT}, as no port is named {PORT_NAME}"
                yield Finding("warning", "port", text, f"name: {PORT_NAME} for TensorFlow's port, another for others")
            elif not _PORT_NAME.fullmatch(str(port["name"])):
                text = f"{name}: {port['name']!r} is no name of a port: the API server refuses the pod"
                yield Finding("error", "port", text, "1 to 15 small letters, digits and -, with a letter")
            elif sum(port.get("name") == each.get("name") for each in given) > 1 and port != first[port["name"]]:
                text = f"{name}: two ports are named {port['name']}: the API server refuses the pod"
                yield Finding("error", "port", text, "another name for one of them")
            elif PORT_NAME not in named and len(given) == 1 and str(port["name"]).startswith(("tf", "tensorflow")):
                text = f"{name}: port {port['name']} is not TensorFlow's: TF_CONFIG says {PORT}, as none is {PORT_NAME}"
                yield Finding("warning", "port", text, f"name: {PORT_NAME}, if it should be")
            if (protocol := port.get("protocol") or "TCP") not in _PROTOCOLS:
                text = f"{name}: {protocol!r} is no protocol: the API server refuses the pod"
                yield Finding("error", "port", text, _guess(str(protocol), _PROTOCOLS))
            if not 0 < port["containerPort"] < 65_536:
                yield Finding("error", "port", f"{name}: there is no port {port['containerPort']}", "1 to 65535")
        ports = render_service(job, spec, name, 0)["spec"]["ports"]
        if len(ports) > 1 and not all(port.get("name") for port in ports):
            text = f"{name}: its Services are refused: of several ports, each needs a name"
            yield Finding("error", "port", text, "name each port")
        numbers = [(port.get("protocol", "TCP"), port["port"]) for port in ports]
        if twice := {number for _, number in numbers if numbers.count(("TCP", number)) > 1}:
            text = f"{name}: its Services are refused: port {', '.join(map(str, twice))} is there twice"
            yield Finding("error", "port", text, f"name the port of TensorFlow {PORT_NAME}")


def _pods(spec: TFJobSpec) -> Iterator[Finding]:
    """What the API server refuses of a pod, though it takes the job."""
    for name, replica in spec.tf_replica_specs.items():
        pod = replica.template.get("spec") or {}
        volumes = {each.get("name") for each in pod.get("volumes") or ()}
        for container in (*replica.containers(), *(pod.get("initContainers") or ())):
            about = f"{name}: container {container.get('name')}"
            for mount in container.get("volumeMounts") or ():
                if mount.get("name") not in volumes:
                    text = f"{about} mounts volume {mount.get('name')}, which its template does not have: "
                    yield Finding("error", "volume", f"{text}the API server refuses the pod", "add it to volumes")
            resources = container.get("resources") or {}
            requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
            for each, amount in requests.items():
                if each in limits and quantity(amount) > quantity(limits[each]):
                    text = f"{about} requests more {each} ({amount}) than its limit ({limits[each]}): "
                    yield Finding("error", "resources", f"{text}the API server refuses the pod", "a higher limit")
                elif each not in limits and "/" in each:
                    text = f"{about} requests {each} without a limit of it: the API server refuses the pod"
                    yield Finding("error", "resources", text, f"put {each} into limits")
        labels = (replica.template.get("metadata") or {}).get("labels") or {}
        for key, value in labels.items():
            if not _LABEL.fullmatch(str(value)):
                text = f"{name}: {value!r} is no value of a label ({key}): the API server refuses the pod"
                yield Finding("error", "label", text, "up to 63 letters, digits, - _ and .")


def _programs(spec: TFJobSpec, request: JobRequest) -> Iterator[Finding]:
    """Whether the launcher can start the programs, and whether signals reach them."""
    injected = request.elasticity.injected(spec) in ("launcher", "both")
    no_command = without_command(spec)
    if injected and no_command:
        text = f"no launcher can start {', '.join(no_command)}: an image's entrypoint is not known to the operator"
        yield Finding("warning", "launcher", text, "say command in the container tensorflow")
    if not request.elasticity.annotated:
        return
    trainers = {name: trainer_of(replica.template) for name, replica in spec.tf_replica_specs.items()}
    shells = [name for name, trainer in trainers.items() if shell_waits(trainer)]
    if shells:
        text = (
            f"{', '.join(shells)}: a shell starts the program and waits for it. A shell does not pass SIGTERM on: "
            "where no launcher does, the program ends without saving"
        )
        yield Finding("warning", "shell", text, "write exec before the last command of the script")


def shell_waits(container: Mapping[str, Any]) -> bool:
    """Whether a container's command is a shell that stays between the kubelet and the program: a script after `-c` of
    more than one command whose last one is not `exec`. Shells replace themselves by a single command."""
    words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
    if words and posixpath.basename(words[0]) in _WRAPPERS:
        # What precedes the shell are options, and values of variables.
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
    """The commands of a shell script, one after the other, each from its first word on."""
    script = re.sub(r"[0-9]?>&[0-9-]?|&>>?", ">", script)  # redirections, whose & is no separator
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ; "), posix=False, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= set(";&|()"):
                found.append([])
            else:
                found[-1].append(token)
    except ValueError:  # a quote that does not end
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
            ends = "goes on for as long as its pod" if _ENDLESS.search(other) else "may go on after the program"
            text = f"{name}: container {other} {ends}: the job is not done before all containers of the pod are"
            yield Finding("warning", "sidecar", text, do)


def _capabilities(request: JobRequest) -> Iterator[Finding]:
    """What may be done to the job, and what is missing where it may not."""
    elasticity = request.elasticity
    if not elasticity.annotated:
        yield Finding("ok", "elasticity", f"no annotation {PREFIX}...: it is run as upstream's operator runs it")
        return
    why = (
        f"it has no {PREFIX}checkpoint-dir to go on from"
        if elasticity.checkpoint_dir is None
        else "its annotation rescale is never"
        if elasticity.rescale == "never"
        else "enableDynamicWorker is true"
    )
    if request.elastic:
        bounds = {name: request.bounds(name) for name in request.declared}
        words = ", ".join(f"{name} {low} to {high}" for name, (low, high) in bounds.items() if low != high)
        yield Finding("ok", "elastic", f"its size may change: {words}")
    elif request.stoppable:
        yield Finding(
            "ok", "elastic", "its size is fixed, as no bounds leave room; it may be stopped, moved and resumed"
        )
    else:
        yield Finding("warning", "elastic", f"nothing may be done to it while it runs: {why}", "docs/elastic.md")
    if request.queue:
        yield Finding("ok", "Kueue", f"queue {request.queue} admits it: it never has more replicas than declared")


def _checkpoints(spec: TFJobSpec, directory: str | None) -> Iterator[Finding]:
    """Whether what the chief writes can be written, and is still there when its pod is recreated, maybe on another
    node."""
    if directory is None or "://" in (path := directory.removeprefix("file://")):
        return
    about, again = "checkpoint-dir", "a chief whose pod is recreated (stopped, moved, evicted) begins at step 0"
    if not path.startswith("/"):
        text = f"{path} is relative to the working directory, which is on no volume: {again}"
        yield Finding("warning", about, text, f"an absolute path; {_LASTING}")
        return
    at = clean(path)
    name = chief_of(spec)[0]
    chief = spec.tf_replica_specs.get(name)
    if chief is None:
        return
    mount = mount_of(chief.template, at)
    if mount is None:
        others = [each for each, replica in spec.tf_replica_specs.items() if mount_of(replica.template, at) is not None]
        only = f" ({', '.join(others)} has one there, but {name} writes the checkpoints)" if others else ""
        yield Finding("warning", about, f"{path} is on no volume of {name}{only}: {again}", _LASTING)
        return
    volumes = {each.get("name"): each for each in (chief.template.get("spec") or {}).get("volumes") or ()}
    volume = volumes.get(mount.get("name"))
    if volume is None:
        return  # the pod is refused, which is said already
    kind, source = next(((key, value or {}) for key, value in volume.items() if key != "name"), ("emptyDir", {}))
    if mount.get("readOnly") or kind in _READ_ONLY or source.get("readOnly"):
        what = f"a {kind} volume" if kind in _READ_ONLY else "mounted read-only"
        yield Finding("warning", about, f"{path} is {what}: no checkpoint can be written there", _LASTING)
    elif kind in _PASSING:
        text = f"{path} is on {_PASSING[kind]}, which goes with its pod: {again}"
        yield Finding("warning", about, text, _LASTING)
    elif kind == "hostPath" and not _one_node(chief.template):
        text = f"{path} is on a hostPath: each node has its own, so on another node the chief begins at step 0"
        yield Finding("warning", about, text, _LASTING)
    if expression := mount.get("subPathExpr"):
        env = trainer_of(chief.template).get("env") or ()
        own: set[str] = set()
        for each in env:  # one may name those before it
            if "fieldRef" in (each.get("valueFrom") or {}) or own & _named_in(each.get("value")):
                own.add(str(each.get("name")))
        if own & _named_in(expression):
            text = f"{path} is below subPathExpr {expression}, which may be another one in the next pod: {again}"
            yield Finding("warning", about, text, "subPath, or a subPathExpr that is the same in each pod")


def _named_in(text: object) -> set[str]:
    """The variables that a value of Kubernetes names."""
    return set(re.findall(r"\$\(([-\w.]+)\)", str(text)))


def claim_of_checkpoints(spec: TFJobSpec, directory: str | None) -> tuple[str, int]:
    """The PersistentVolumeClaim that holds the checkpoints (empty: none does), and how many pods mount it."""
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
    """Whether the template's pods can be on one node only, by its name."""
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
        text = "nothing in its pods tells its steps: no progress, no expected end"
        yield Finding("warning", "reports", text, f"{PREFIX}inject: sidecar, or a checkpoint-dir")
    if elasticity.deadline is not None and elasticity.total_steps is None and elasticity.estimated_duration is None:
        text = "before it has told its number of steps nobody knows whether it will be met"
        yield Finding("warning", "deadline", text, f"{PREFIX}total-steps, or {PREFIX}estimated-duration")
    if none := [name for name, asked in request.requests.items() if not asked.cpu]:
        text = f"{', '.join(none)} request no CPU: plans take it that they need none"
        yield Finding("warning", "requests", text, "resources.requests.cpu of the container tensorflow")
