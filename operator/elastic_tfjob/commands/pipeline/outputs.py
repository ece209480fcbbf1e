"""What a step of a pipeline tells: parameters, metrics, where the model is, and a page with the timeline."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final

import orjson

from elastic_tfjob.api.tfjob import CONTAINER, TFJobSpec
from elastic_tfjob.commands.pipeline.request import Executor
from elastic_tfjob.controller.job.rescale_input import chief_of
from elastic_tfjob.controller.objects.size import words
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.query.rows.job import Seen, job_row
from elastic_tfjob.controller.query.rows.timeline import Size, sizes, timeline

__all__ = ["metrics", "model_uri", "page", "put", "write"]

_WIDE, _HIGH, _COLOURS = 900, 160, ("#2f6fde", "#e0652f", "#1f9d6b", "#a04bd0", "#c79a00")
_STYLE: Final = "body{font:14px/1.45 system-ui,sans-serif;margin:24px}td{padding:3px 10px;vertical-align:top}"


def metrics(seen: Seen) -> dict[str, float]:
    """Figures of a job as of its end; what is not known is left out. `steps_per_s` is as measured last; `downtime_s` is
    the sum over the rescales that the state remembers, the last ten; `deadline_met` is 1 or 0."""
    row, found = job_row(seen), dict[str, float]()
    if seen.state is not None:
        known = {"steps": seen.state.step, "steps_per_s": seen.state.steps_per_s, "rescales": seen.state.rescales}
        found |= {name: float(value) for name, value in known.items() if value is not None}
        found["downtime_s"] = sum(each.downtime_s or 0.0 for each in seen.state.history)
    due, ended = moment_of(row.deadline), moment_of(row.ended)
    if due is not None and row.state in ("Succeeded", "Failed"):
        found["deadline_met"] = float(row.state == "Succeeded" and ended is not None and ended <= due)
    return found


def model_uri(spec: TFJobSpec, model_dir: str) -> str:
    """Where others find what the chief wrote there: a URL as it is, `pvc://CLAIM/PATH` for a path on a volume; empty
    where the path is not on a volume that outlives the pod."""
    if "://" in model_dir or not model_dir:
        return model_dir
    kind, _ = chief_of(spec)
    path, found, depth = PurePosixPath(model_dir), "", -1
    try:
        pod = spec.tf_replica_specs[kind].template["spec"]
        claims = {each["name"]: (each.get("persistentVolumeClaim") or {}).get("claimName") for each in pod["volumes"]}
        container = next(each for each in pod["containers"] if each["name"] == CONTAINER)
        for mount in container["volumeMounts"]:
            at = PurePosixPath(mount["mountPath"])
            if path.is_relative_to(at) and len(at.parts) > depth:
                depth, claim = len(at.parts), claims.get(mount["name"])
                inside = PurePosixPath(mount.get("subPath") or "", path.relative_to(at))
                found = f"pvc://{claim}/{inside}" if claim and "subPathExpr" not in mount else ""
    except (KeyError, TypeError, AttributeError, StopIteration):  # a pod template is a user's
        return ""
    return found


def page(seen: Seen, condition: str) -> str:
    """The timeline of a job as one page of HTML without scripts."""
    row = job_row(seen)
    rows = "".join(
        f"<tr><td>{escape(each.at or 'not yet')}</td><td>{escape(each.text)}</td><td>{escape(each.reason)}</td></tr>"
        for each in timeline(seen)
    )
    figures = ", ".join(f"{name} {value:g}" for name, value in metrics(seen).items())
    due = f"<p>Deadline: {escape(row.deadline)}</p>" if row.deadline else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(row.name)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(row.namespace)}/{escape(row.name)}: {escape(condition)}</h1>"
        f"<p>{escape(row.reason)}</p>{due}<p>{escape(figures)}</p>{_chart(sizes(seen), row.ended)}<table>{rows}</table>"
    )


def _chart(found: Sequence[Size], ended: str | None) -> str:
    """Replicas of each type over time, as steps."""
    points = [(at.timestamp(), each.replicas) for each in found if (at := moment_of(each.at)) is not None]
    if not points:
        return ""
    first = points[0][0]
    last = max((moment_of(ended) or datetime.now(UTC)).timestamp(), points[-1][0], first + 1)
    most = max([count for _, replicas in points for count in replicas.values()], default=1)
    types = sorted({name for _, replicas in points for name in replicas})
    lines = []
    for number, name in enumerate(types):
        path: list[str] = []
        for when, replicas in points:
            x, y = _WIDE * (when - first) / (last - first), _HIGH * (1 - replicas.get(name, 0) / most)
            path.append(f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}")
        colour = _COLOURS[number % len(_COLOURS)]
        lines.append(f'<path d="{"".join(path)}H{_WIDE}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = escape(f"{name}: up to {max(replicas.get(name, 0) for _, replicas in points)}")
        lines.append(f'<text x="{10 + 160 * number}" y="{_HIGH + 20}" fill="{colour}">{label}</text>')
    at_first = escape(words(points[0][1])) if points[0][1] else "nothing"
    box = f'viewBox="-4 -4 {_WIDE + 8} {_HIGH + 32}" width="{_WIDE}"'
    return f'<svg {box} role="img" aria-label="sizes over time, first {at_first}">{"".join(lines)}</svg>'


def write(executor: Executor, seen: Seen, condition: str, model_dir: str, timeline_file: str) -> None:
    """Write all outputs of a step where KFP looks for them."""
    values = {"job_name": seen.job.name, "final_condition": condition, "model_dir": model_dir}
    for name, place in executor.parameters.items():
        if name in values:
            put(place, values[name])
    if timeline_file:
        put(timeline_file, page(seen, condition))
    uri = model_uri(seen.job.spec(), model_dir) if seen.request is not None else ""
    told: dict[str, Mapping[str, Any]] = {
        "metrics": {"metadata": metrics(seen)},
        "model": {"metadata": {"job": seen.job.name, "path": model_dir}, **({"uri": uri} if uri else {})},
        "timeline": {},
    }
    # Whole, with the uri: without it a runner takes an artifact for one that has none.
    artifacts = {
        name: {"artifacts": [{"name": given.get("name", name), "uri": given.get("uri", ""), **told[name]}]}
        for name, given in executor.artifacts.items()
        if name in told
    }
    if executor.output_file:
        put(executor.output_file, orjson.dumps({"artifacts": artifacts}).decode())


def put(name: str, text: str) -> None:
    """Write a file, with its folders."""
    place = Path(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
