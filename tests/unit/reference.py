"""The pages of docs/ that are written from the code, and the schema of the chart's values.

PYTHONPATH=tests python -m unit.reference            writes them
PYTHONPATH=tests python -m unit.reference --check    ends with 1 where one is old
"""

import ast
import dataclasses
import itertools
import json
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from prometheus_client import Counter, Gauge, Histogram
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from elastic_tfjob.api.annotations import ANNOTATIONS, OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.api.reading import MAX_DURATION_S
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.model import catalogue, reports
from elastic_tfjob.controller.model.settings import (
    AutoscalingSettings,
    CompactSettings,
    Configuration,
    InjectedResources,
    KueueSettings,
    OrderSettings,
    PoolSettings,
    QueryLimits,
    RescaleLimits,
    StatusPolling,
)
from elastic_tfjob.controller.query.rows import openapi
from elastic_tfjob.exporter.metrics import ProgressCollector
from elastic_tfjob.scheduling.contract import as_markdown, refused_values
from elastic_tfjob.scheduling.core import ElasticParameters, ProfileParameters
from elastic_tfjob.scheduling.profiles import PROFILES, parse_profile
from elastic_tfjob.scheduling.profiles.elastic import TeamParameters, TeamTermsParameters
from harness import monitoring
from unit import chart_schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

WRITTEN = "<!-- Written by `make reference` from the code. -->"


def pages() -> dict[str, str]:
    """Text by place in docs/."""
    return {
        "contract.md": as_markdown(refused_values()),
        "reference/configuration.md": configuration(),
        "reference/annotations.md": annotations(),
        "reference/events.md": events(),
        "reference/metrics.md": operator_metrics(),
        "reference/status.md": status(),
        "reference/openapi.json": json.dumps(openapi.document(PROFILES), indent=1) + "\n",
        "../manifests/helm/elastic-tfjob/values.schema.json": json.dumps(chart_schema.schema(), indent=1) + "\n",
    }


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


# ConfigMap


def configuration() -> str:
    parts = [
        "# The operator's configuration",
        WRITTEN,
        "The key `config.yaml` of the ConfigMap `elastic-tfjob-operator`. The operator follows a change at once, "
        "without a restart. An invalid content raises the event `InvalidConfiguration`, and the last valid content "
        "[stays in force](../install.md#which-profile-decides-now-and-why). Values in seconds are at most "
        f"{MAX_DURATION_S} (100 years).",
        "```yaml\nprofile: kips\nscope: annotated\nprofiles: {kips: {cooldown_s: 60}}\n"
        "rescale: {prepare_timeout_s: 300}\nstatus: {interval_s: 5}\n```",
    ]
    models: dict[str, type[BaseModel]] = {
        "Top level": Configuration,
        "`rescale`": RescaleLimits,
        "`status`": StatusPolling,
        "`query`": QueryLimits,
        "`injected`": InjectedResources,
        "`pools`, each ([loans](../loans.md))": PoolSettings,
        "`autoscaling` ([clusters with an autoscaler](../autoscaling.md))": AutoscalingSettings,
        "`autoscaling.order`": OrderSettings,
        "`autoscaling.compact`": CompactSettings,
        "`kueue` ([growth within the quota](../kueue.md#growth))": KueueSettings,
    }
    for title, model in models.items():
        parts += [f"## {title}", fields(model)]
    return "\n\n".join((*parts, *profiles())) + "\n"


def profiles() -> Iterator[str]:
    """The parameters that several profiles have, then each profile with its own ones and its other defaults."""
    models = {name: type(parse_profile(name, {})) for name in PROFILES}
    resizing = ", ".join(f"`{name}`" for name, model in models.items() if issubclass(model, ElasticParameters))
    yield "## Profiles"
    yield (
        "[Simulating policies](../simulation.md#profiles) says what each profile decides. Parameters go under "
        "`profiles.NAME`. The operator [refuses](../contract.md#what-the-operator-refuses) parameters that have a "
        "meaning only in a simulation."
    )
    yield "### Parameters of all profiles"
    yield fields(ProfileParameters)
    yield "### Parameters of profiles that resize jobs"
    yield f"They apply to {resizing}."
    yield fields(ElasticParameters, beside=ProfileParameters)
    for name, model in models.items():
        base = ElasticParameters if issubclass(model, ElasticParameters) else ProfileParameters
        yield f"### `{name}`"
        yield " ".join((model.__doc__ or "").split())
        changed = [
            f"`{key}: {default(field)}`" for key, field in model.model_fields.items() if _differs(base, key, field)
        ]
        if changed:
            yield f"Other defaults: {', '.join(changed)}."
        if any(not _same(base, key, field) for key, field in model.model_fields.items()):
            yield fields(model, beside=base)
        if name == "elastic":
            yield "#### `profiles.elastic.teams`"
            yield "See [teams](../teams.md)."
            yield fields(TeamParameters)
            yield "#### `profiles.elastic.teams.named`, each"
            yield fields(TeamTermsParameters)


def _same(base: type[BaseModel], key: str, field: FieldInfo) -> bool:
    """Whether `base` has this field with the same meaning and bounds; the default may differ."""
    other = base.model_fields.get(key)
    return other is not None and (allowed(other), other.description) == (allowed(field), field.description)


def _differs(base: type[BaseModel], key: str, field: FieldInfo) -> bool:
    return _same(base, key, field) and default(base.model_fields[key]) != default(field)


def fields(model: type[BaseModel], beside: type[BaseModel] | None = None) -> str:
    """The fields as a table, without those that `beside` has with the same meaning."""
    rows = []
    for name, field in model.model_fields.items():
        if beside is None or not _same(beside, name, field):
            meaning = field.description or f"see `{name}` below"
            rows.append((f"`{name}`", allowed(field), f"`{default(field)}`", meaning))
    return table(("Key", "Allowed", "Default", "Meaning"), rows)


def allowed(field: FieldInfo) -> str:
    kind = field.annotation
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(kind))
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    text = words.get(kind, "") if isinstance(kind, type) else ""
    if not text:
        text = f"list of {_items(kind)}" if typing.get_origin(kind) is tuple else "mapping"
    strict = any(isinstance(rule, Gt) for rule in field.metadata)  # of a parameter whose class narrows another's
    rules = [rule for rule in field.metadata if not (strict and isinstance(rule, Ge))]
    return " ".join([text, *filter(None, map(bound, rules))])


def _items(kind: Any) -> str:
    """What a list has: of an annotated type the type."""
    (item, *_) = typing.get_args(kind)
    return "texts" if str in (item, *typing.get_args(item)) else "numbers"


def bound(rule: Any) -> str:
    match rule:
        case Ge(ge=least):
            return f"from {least}"
        case Gt(gt=least):
            return f"above {least}"
        case Le(le=most):
            return "" if most == MAX_DURATION_S else f"to {most}"
        case Lt(lt=most):
            return f"below {most}"
        case MaxLen(max_length=most):
            return f"(at most {most})"
        case _:
            return ""


def default(field: FieldInfo) -> Any:
    if field.is_required():
        return "required"
    found = field.get_default(call_default_factory=True)
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, tuple):
        return list(found)
    return {} if isinstance(found, BaseModel) else "null" if found is None else found


# Annotations


def annotations() -> str:
    rows = [(f"`{name}`", words) for name, (_, words) in ANNOTATIONS.items()]
    *own, last = (f"`{name}`" for name in sorted(OPERATOR_ANNOTATIONS))
    return (
        "\n\n".join(
            (
                "# Annotations of a TFJob",
                WRITTEN,
                f"All have the prefix `{PREFIX}`. [Elastic training](../elastic.md#annotations) has their meaning and "
                "defaults. An invalid value raises the event `InvalidAnnotation` and is ignored.",
                table(("Annotation", "Allowed"), rows),
                "Annotations of nodes and of the operator's ConfigMap are in [loans](../loans.md).",
                f"Only the operator may write {', '.join(own)} and {last}. `command` is an annotation of pods.",
            )
        )
        + "\n"
    )


# Events


def events() -> str:
    rows = [(f"`{reason}`", each.type, each.about, each.text) for reason, each in catalogue.EVENTS.items()]
    return (
        "\n\n".join(
            (
                "# Events",
                WRITTEN,
                "`kubectl describe tfjob NAME` (or `node NAME`) shows them. Repeated events are counted.",
                table(("Reason", "Type", "Object", "Meaning"), rows),
                "If a pod does not start, the TFJob also gets an event with kubelet's or kube-scheduler's reason, such "
                "as `Unschedulable` or `ErrImagePull`.",
            )
        )
        + "\n"
    )


def reasons_in_code() -> set[str]:
    """Reasons in calls of Event(type, reason, ...) and of functions that make one; `{kind}` stands for each kind."""
    found: set[str] = set()
    folder = ROOT / "operator" / "elastic_tfjob" / "controller"
    for path in set(folder.glob("**/*.py")) - {folder / "model" / "catalogue.py"}:
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            words = [word for argument in call.args for word in texts(argument)]
            for kind, reason in itertools.pairwise(words):
                if kind in ("Normal", "Warning") and reason.isidentifier():
                    found.add(reason)
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in ("_refuse", "_fail"):
                found |= {word for word in words[:1] if word.isidentifier()}
    return found


def texts(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "*" for part in argument.values]
        text = "".join(map(str, parts))
        if text.endswith("*") and text[:-1].isidentifier():
            yield text[:-1] + "Pod"


# Metrics


def operator_metrics() -> str:
    rows = []
    for each in known_metrics():
        kind = type(each).__name__.lower()
        name = each._name + ("_total" if kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in each._labelnames) or "-"
        rows.append((f"`{name}`", kind, labels, each._documentation))
    return (
        "\n\n".join(
            (
                "# Metrics",
                WRITTEN,
                "## Metrics of the operator",
                "At `:8080/metrics` of its pod.",
                table(("Metric", "Type", "Labels", "Meaning"), sorted(rows)),
                "## Metrics of training pods",
                "At `:9465/metrics` of each pod with an exporter. Values that the program does not report are omitted.",
                table(("Metric", "Type", "Meaning"), pod_metrics()),
            )
        )
        + "\n"
    )


def pod_metrics() -> list[tuple[str, str, str]]:
    """All that an exporter tells where program and launcher wrote everything."""
    with tempfile.TemporaryDirectory() as folder:
        monitoring.train(Path(folder), 1)
        return sorted(
            (f"`{each.name}{'_total' if each.type == 'counter' else ''}`", each.type, each.documentation)
            for each in ProgressCollector(Path(folder)).collect()
        )


def known_metrics() -> Iterator[Any]:
    for each in vars(metrics).values():
        yield from (
            m
            for m in (each.values() if isinstance(each, dict) else (each,))
            if isinstance(m, Counter | Gauge | Histogram)
        )


# /status

NOT_READ = {
    "save_error": ("text", "why the last save failed, or `null`; the operator does not read it"),
    "not_restored": (
        "text",
        "variables that began with initial values, because the restored checkpoint lacks them and they were created "
        "after `resume()`; `null` if there are none; the operator does not read it",
    ),
    "start": (
        "object",
        "how the next generation's program starts; `elastic-tfjob explain` shows the chief's",
    ),
    "start.way": ("`fork`, `exec`", "forked from an interpreter that has the imports, or as a process of its own"),
    "start.why": ("text", "why it will not be forked"),
    "preparation": (
        "object",
        "how the newest generation's program became ready, and its cost; the operator does not read it",
    ),
    "preparation.generation": ("whole number", "the generation"),
    "preparation.way": ("`fork`, `exec`", "how the program was started"),
    "preparation.seconds": ("number", "seconds from its start until it waited or listened"),
    "preparation.cpu_s": ("number", "CPU seconds used until then"),
    "preparation.in_memory": ("boolean", "whether it can take the values of the running program in memory"),
    "preparation.why_files": ("text", "why values go through files"),
}
"""Keys of the answer that a Report does not keep."""
OWN = {"mean_cores", "mean_steps_per_s", "received_at_s", "saves", "starts"}
"""Fields of a Report that are no key of the answer."""


def status() -> str:
    return (
        "\n\n".join(
            (
                "# A pod's `/status`",
                WRITTEN,
                "The exporter of each pod answers at port 9465 with one JSON object "
                "([command](../elastic.md#look-at-a-job)). Unknown values and values of a wrong type are `null`. "
                "Clients should ignore keys that they do not know.",
                table(("Key", "Value", "Meaning"), sorted(status_rows(), key=lambda row: row[0].strip("`"))),
            )
        )
        + "\n"
    )


def status_rows() -> Iterator[tuple[str, str, str]]:
    """Of each key, with a dot before those of an object within."""
    meanings = field_docs(Path(reports.__file__))

    def rows(model: type, prefix: str) -> Iterator[tuple[str, str, str]]:
        hints = typing.get_type_hints(model)
        for each in dataclasses.fields(model):
            if each.name in OWN:
                continue
            kind = next(k for k in (*typing.get_args(hints[each.name]), hints[each.name]) if k is not type(None))
            yield f"`{prefix}{each.name}`", value_words(hints[each.name]), meanings[model.__name__, each.name]
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                yield from rows(kind, f"{prefix}{each.name}.")

    yield from rows(reports.Report, "")
    yield from ((f"`{key}`", *words) for key, words in NOT_READ.items())


def value_words(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return "list of texts"
    (kind, *_) = [k for k in (*typing.get_args(hint), hint) if k is not type(None)]
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return words.get(kind, "object")


def field_docs(path: Path) -> dict[tuple[str, str], str]:
    """What stands below each field of a class, by class and field."""
    found: dict[tuple[str, str], str] = {}
    for made in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)):
        for field, text in itertools.pairwise(made.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[made.name, name] = " ".join(words.split())
    return found


def old() -> list[str]:
    """Pages that are not what the code says."""
    made = pages()
    there = {f"reference/{path.name}" for path in (DOCS / "reference").glob("*.md")}
    return sorted(name for name in made.keys() | there if name not in made or made[name] != _read(DOCS / name))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main() -> None:
    if "--check" in sys.argv:
        for name in (found := old()):
            print(f"{(DOCS / name).resolve().relative_to(ROOT)} is old: make reference")
        sys.exit(1 if found else 0)
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
