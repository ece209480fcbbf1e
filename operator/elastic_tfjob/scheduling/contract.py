"""The contract between the decision core and its two environments, the operator and the simulator: the source of each
field of a Snapshot, and how each part of a Plan is carried out.

If an environment lacks something that a profile needs, the profile would decide on missing data, or its decision would
be lost silently. Therefore the table is data: a test compares it with the classes, docs/contract.md is generated from
it, and the operator rejects a configuration that needs what a live cluster lacks.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from elastic_tfjob.scheduling.profiles import PROFILES, ProfileParameters, all_profiles, build, parse_profile
from elastic_tfjob.scheduling.rules import Need

__all__ = [
    "FIELDS",
    "NEEDS",
    "TELLS",
    "VERBS",
    "Both",
    "as_markdown",
    "passed_over",
    "refusals",
    "refused_values",
]


class Both(NamedTuple):
    """How each environment has something: the source of a field, how it carries out a part of a plan, or how it meets a
    need of profiles. Empty: it does not. `why`: for a need that the live environment does not meet, why a profile is
    rejected."""

    live: str
    simulated: str
    why: str = ""


FIELDS: Final[Mapping[str, Mapping[str, Both]]] = {
    "Snapshot": {
        "now": Both("the operator's clock", "the simulated clock"),
        "nodes": Both("nodes that are ready, not cordoned, and not recalled by their pool", "all nodes"),
        "jobs": Both("TFJobs that the profile decides for", "jobs that have arrived and not ended"),
        "seed": Both("always 0", "the run's seed"),
        "pools": Both(
            "unschedulable pods of the pools' namespaces, headroom, annotation want-nodes of the ConfigMap",
            "the inference pool's demand",
        ),
        "history": Both("states of succeeded TFJobs, and a ConfigMap with those of deleted ones", "finished jobs"),
        "cluster_rules": Both("the ConfigMap", "the scenario"),
        "leaving": Both(
            "draining taints and the notice that each gives, from the table of signs and the ConfigMap",
            "notice_s of the scenario's nodes",
        ),
    },
    "ClusterRules": {
        "orders": Both(
            "`autoscaling.order` of the ConfigMap, if the cluster has an autoscaler",
            "`autoscaling.order` of the scenario, if it has an autoscaler; never for `fixed`, whose pods exist at once",
        ),
        "compaction": Both(
            "`autoscaling.compact` of the ConfigMap", "`autoscaling.compact` of the scenario, if it has an autoscaler"
        ),
    },
    "Node": {
        "name": Both("metadata.name", "the cluster of the scenario"),
        "capacity": Both("status.allocatable", "the cluster of the scenario"),
        "free": Both("capacity less the requests of all other pods than those of the profile's jobs", "capacity"),
        "pool": Both("label pool, if the ConfigMap has this pool", "training or inference"),
        "labels": Both("metadata.labels", "the cluster of the scenario"),
        "taints": Both("spec.taints, without the operator's own", "the cluster of the scenario"),
        "accelerator_speed": Both(
            "accelerator_speed of the node's pool in the ConfigMap; 1 without a pool",
            "the cluster of the scenario",
        ),
        "autoscaled": Both(
            "a label that `autoscaling.compact.nodes` names, no pod of others but of DaemonSets, and no annotation "
            "that forbids its removal",
            "nodes that the scenario's autoscaler added",
        ),
        "price": Both("`autoscaling.compact.prices` of the ConfigMap", "the scenario's autoscaler"),
        "given_up": Both("in memory, from the last plans", "from the last plans"),
        "spot": Both("labels of the clouds, and `autoscaling.spot` of the ConfigMap", "the cluster of the scenario"),
        "avoid": Both("taints that announce a removal without deciding it", "the cluster of the scenario"),
        "loan": Both(
            "annotation loan, taint loaned, and the pods on the node",
            "the inference pool's demand, and the plan's loans",
        ),
    },
    "JobSpec": {
        "key": Both("namespace/name", "the workload: team/name, if the job has a team"),
        "arrival_s": Both("metadata.creationTimestamp", "the workload"),
        "groups": Both(
            "tfReplicaSpecs, with the bounds of the annotations; with a Kueue queue at most the admitted replicas",
            "the workload: there is no Kueue",
        ),
        "sequence": Both(
            "always 0: names decide between jobs of the same second",
            "the place in the workload",
        ),
        "priority": Both(
            "the lowest of its PriorityClasses; lowest of all jobs while its namespace has failed reservations",
            "the workload",
        ),
        "deadline_s": Both("annotation deadline", "the workload"),
        "total_steps": Both(
            "annotation total-steps, else the program's report", "the speed model, with the noise of estimates"
        ),
        "duration_s": Both("annotation estimated-duration", "the user's estimate, or with `oracle` the truth"),
        "loanable": Both("annotation loanable, if the job can be stopped", "the workload"),
        "resizable": Both("a checkpoint-dir, and bounds that allow several sizes", "always"),
        "stoppable": Both("a checkpoint-dir, and a rescale other than never", "always"),
        "movable": Both("a checkpoint-dir, and a rescale other than never", "always"),
        "reports": Both("an exporter is injected", "always"),
        "fixed_cpu": Both(
            "jobs that Kueue admitted, that have pod-level resources, or that cannot be rescaled", "never"
        ),
        "constraints": Both(
            "nodeSelector, required node affinity, tolerations; excluded nodes", "`node_selector` of the scenario"
        ),
        "constraints_by_type": Both("the same, if replica types differ", "none"),
        "model": Both("annotation model, else the name without its number", "the workload, else as live"),
        "asked": Both("annotations target-workers and target-ps, edits of the spec", "never set"),
    },
    "Job": {
        "spec": Both("see JobSpec", "see JobSpec"),
        "placement": Both("nodes of bound pods, else those of the target", "as carried out"),
        "phase": Both("annotation state, and whether all pods are bound", "as carried out"),
        "steps": Both("the chief's exporter", "the speed model"),
        "observed_s": Both("the time of that report", "the last change"),
        "steps_per_s": Both("the chief's exporter", "the speed model"),
        "since_s": Both("annotation record, or the start of waiting", "the last change"),
        "service": Both("annotation record", "as carried out"),
        "rescaled_s": Both("the history in annotation state", "as carried out"),
        "executed_s": Both("annotation record", "as carried out"),
        "migrations": Both("annotation record", "as carried out"),
        "speed": Both("the speeds in annotation state, fitted", "measured, or with `oracle` the truth"),
        "loss": Both("the chief's exporter, and annotation record", "the workload's loss curve"),
        "cpu": Both("CPU granted by the target", "as carried out"),
        "stops": Both("annotation record", "as carried out"),
        "stopped_s": Both("annotation record", "as carried out"),
        "resumed_s": Both("annotation record", "as carried out"),
        "memory": Both("annotation target, from the last plan", "from the last plan"),
        "warm_start": Both("start.way of the chief's /status", "if `--boot-cpu` has the cost of a kept replica"),
        "live_workers": Both("modes of the chief's /status", "with `--live-pause`, for jobs with parameter servers"),
        "cpu_use": Both(
            "CPU use that exporters report, divided by the CPU that pods hold", "the speed models ps-cpu and cpu-share"
        ),
        "step_cpu_s": Both("CPU and steps of the same last minutes", "never: `steps_per_s` and `cpu_use` are current"),
        "cpu_limited": Both("limits.cpu of all its containers", "always, except with the speed model cpu-share"),
        "cpu_shared": Both(
            "limits.cpu of each container is the sum of the job's requests on its node",
            "profiles with `share_cpu`, except with the speed model cpu-share",
        ),
        "prepare_s": Both("annotation state", "as carried out, in speed models where speed follows CPU"),
        "cpu_settled": Both("half a minute with the same weights, or a limit", "always"),
    },
}
"""The source of each field, by class and field."""

VERBS: Final[Mapping[str, Both]] = {
    "start": Both("pods are created on the nodes of the plan", "after `--start-pause`"),
    "resize": Both("live, by overlap, spare or recreate; no step is lost", "after `--rescale-pause`"),
    "stop": Both(
        "the chief saves, then pods end, the chief first; the job resumes from the checkpoint",
        "costs `--restart-pause` and lost steps",
    ),
    "grant CPU": Both("in place, within a node", "at once"),
    "repair": Both(
        "pods of a lost node are recreated on another one", "from the last checkpoint, after `--restart-pause`"
    ),
    "move": Both(
        "a new pod on the new node, live, by overlap or spare; the chief by overlap", "after `--migrate-pause`"
    ),
    "remember": Both("annotation target, with the job's change or alone", "at once"),
    "give up": Both(
        "replicas beyond the declared size go, others move; then an autoscaler removes the node",
        "the same, with the scenario's autoscaler",
    ),
    "order nodes": Both(
        "placeholder pods, for which an autoscaler adds nodes", "the scenario's autoscaler adds nodes for them"
    ),
    "borrow, return": Both(
        "taint and annotation of the node, before pods start there; jobs leave a recalled node, or are stopped",
        "the node changes its pool at once",
    ),
}
"""How each part of a plan is carried out."""


NEEDS: Final[Mapping[Need, Both]] = {
    "oracle": Both(
        "",
        "true durations and speeds",
        "only a simulation knows the true values; a live cluster has estimated-duration and reported speeds",
    ),
    "samples": Both(
        "",
        "each job runs at a few sizes before it starts",
        "only a simulation measures a job's speed before it starts; a live cluster learns it",
    ),
    "totals": Both("", "replicas are on no node", "replicas need nodes; only a simulation can count totals alone"),
    "repack": Both(
        "",
        "a resized job is placed again as a whole",
        "only a simulation places a resized job again",
    ),
    "loans": VERBS["borrow, return"],
    "move": VERBS["move"],
    "stop": VERBS["stop"],
    "resize": VERBS["resize"],
    "cpu": VERBS["grant CPU"],
    "service": FIELDS["Job"]["service"],
    "duration": FIELDS["JobSpec"]["duration_s"],
    "speed": FIELDS["Job"]["speed"],
    "deadline": FIELDS["JobSpec"]["deadline_s"],
    "loss": FIELDS["Job"]["loss"],
    "use": FIELDS["Job"]["cpu_use"],
    "history": FIELDS["Snapshot"]["history"],
}
"""The needs that profiles declare. The operator rejects profiles with a need that a live cluster does not meet (see
`refusals`)."""

TELLS: Final[Mapping[Need, tuple[str, ...]]] = {
    "duration": ("JobSpec.duration_s",),
    "speed": ("Job.speed",),
    "deadline": ("JobSpec.deadline_s",),
    "loss": ("Job.loss",),
    "service": ("Job.service", "Job.executed_s"),
    "use": ("Job.cpu_use", "Job.step_cpu_s", "Job.cpu_settled"),
    "history": ("Snapshot.history",),
    "loans": ("Snapshot.pools",),
}
"""For each need, the fields that only profiles with this need may read. All profiles may read the remaining fields."""


def as_markdown(refused: Iterable[tuple[str, str, str]]) -> str:
    """The content of docs/contract.md. `refused`: the parameters that a live cluster cannot follow, with the values and
    the reason."""
    parts = [_HEAD]
    for name, fields in FIELDS.items():
        parts.append(_table(f"### `{name}`", "Field", fields))
    parts.append("## What a plan asks for\n\nAn empty cell means that the environment does not do it.")
    parts.append(_table("", "Part of the plan", VERBS))
    lacks = "\n".join(f"| `{name}` | {values} | {why} |" for name, values, why in refused)
    parts.append(f"{_LACKS}\n\n| Parameter | Refused value | Why |\n|---|---|---|\n{lacks}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(title: str, first: str, rows: Mapping[str, Both]) -> str:
    lines = "\n".join(f"| `{name}` | {both.live or '-'} | {both.simulated or '-'} |" for name, both in rows.items())
    return f"{title}\n\n| {first} | Live cluster | Simulation |\n|---|---|---|\n{lines}".lstrip()


_HEAD: Final = """# One contract, two worlds

The same decision core runs in the operator and in the simulator. It reads a `Snapshot` and returns a `Plan`. This page
lists the source of each field of the Snapshot, and how each part of the Plan is carried out. It is generated from
`scheduling/contract.py`, and a test compares it with the classes.

## What a policy sees

A `-` means that the environment leaves the field at its default."""

_LACKS: Final = """## What the operator refuses

A profile declares its needs. A ConfigMap with a need that the live cluster does not meet is refused with an
`InvalidConfiguration` event, and the last valid configuration stays. If only a default has such a need, the operator
ignores it with a line in its log."""


# The needs of a profile that a live cluster does not meet, from the profile's declared needs and the contract's table.
#
# A parameter's value is rejected if it causes such a need and another value of the parameter does not. A default that
# causes one is ignored and logged by the operator, since profiles have defaults that only a simulation can follow. A
# profile that has such a need for all values of its parameters is rejected.


def refusals(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The reasons why a live cluster cannot follow profile `name` with these settings, one line each. Raises ValueError
    for settings that the profile does not have."""
    problems = []
    for parameter, said in settings.items():
        # Each setting is checked together with the other settings and alone: if two settings cause the same need,
        # another value of only one of them would not remove it.
        for beside in (settings, {parameter: said}):
            if unmet := _unmet_by(name, beside, parameter):
                value, why = unmet
                problems.append(f"profiles.{name}.{parameter}: {why}; allowed: {value}")
                break
    parameters = parse_profile(name, settings)
    build(name, parameters)  # raises for a profile whose `stages` fails
    always = parameters.stages().needs
    lacks = sorted(need for need in always if not NEEDS[need].live)
    return problems + [f"profiles.{name}: {NEEDS[need].why}" for need in lacks]


def passed_over(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that are not in these settings and whose defaults a live cluster cannot follow, with the
    reason."""
    unsaid = (parameter for parameter in all_profiles()[name].model_fields if parameter not in settings)
    answers = ((parameter, _unmet_by(name, settings, parameter)) for parameter in unsaid)
    return {parameter: unmet[1] for parameter, unmet in answers if unmet is not None}


def _unmet_by(name: str, settings: Mapping[str, Any], parameter: str) -> tuple[Any, str] | None:
    """If a live cluster cannot follow this parameter's value: another value that it can follow, and the reason; else
    None."""
    asked = _tried(name, settings)
    if asked is None:
        return None
    for value in _values(all_profiles()[name], parameter):
        unmet = _tried(name, {**settings, parameter: value})
        if unmet is not None and (without := asked - unmet):
            why = "; ".join(NEEDS[need].why for need in sorted(without))
            return value, why
    return None


def refused_values() -> Iterator[tuple[str, str, str]]:
    """Each parameter with rejected values, these values, and the reason."""
    lacking: dict[str, tuple[dict[str, None], str]] = {}
    for name, model in PROFILES.items():
        for parameter in model.model_fields:
            tried = ((value, _tried(name, {parameter: value})) for value in _values(model, parameter))
            needs = {value: unmet for value, unmet in tried if unmet is not None}
            least = frozenset.intersection(*needs.values()) if needs else frozenset[Need]()
            for value, unmet in needs.items():
                if more := sorted(unmet - least):
                    shown = "above 0" if type(value) is int else f"`{value}`"
                    values, _ = lacking.setdefault(parameter, ({}, "; ".join(NEEDS[need].why for need in more)))
                    values[shown] = None
    yield from ((parameter, ", ".join(values), why) for parameter, (values, why) in lacking.items())


def _unmet(name: str, settings: Mapping[str, Any]) -> frozenset[Need]:
    needs = build(name, parse_profile(name, settings)).needs
    return frozenset(need for need in needs if not NEEDS[need].live)


def _tried(name: str, settings: Mapping[str, Any]) -> frozenset[Need] | None:
    """The needs of the profile with these settings; None for invalid settings."""
    try:
        return _unmet(name, settings)
    except ValueError:
        return None


def _values(model: type[ProfileParameters], parameter: str) -> tuple[Any, ...]:
    """Values to try for a parameter, the one without any need first. For a number: zero and a positive value."""
    field = model.model_fields.get(parameter)
    kind = field.annotation if field is not None else None
    if kind is bool:
        return False, True
    if get_origin(kind) is Literal:
        return get_args(kind)
    if kind is int or kind is float:
        return 0, 1
    return ()
