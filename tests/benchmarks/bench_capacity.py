"""What many jobs, or large ones, cost the operator while nothing happens: memory, CPU, and the event loop's delays.

    PYTHONPATH=tests python tests/benchmarks/bench_capacity.py --jobs 10000
    PYTHONPATH=tests python tests/benchmarks/bench_capacity.py --jobs 10000 --elastic --profile kips --nodes 1000
    PYTHONPATH=tests python tests/benchmarks/bench_capacity.py --jobs 100 --job-bytes 1500000
    PYTHONPATH=tests python tests/benchmarks/bench_capacity.py --jobs 1 --workers 1999 --elastic --holders

The whole operator runs in this process, on an API server that is a function: it makes each page of a list when it is
asked for, and remembers only what was written. So what the process takes is the operator's.
"""

import argparse
import asyncio
import gc
import os
import resource
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.inject import inject
from elastic_tfjob.controller.job.pods import TFConfigs, render_pod, render_service
from elastic_tfjob.controller.kube.errors import NotFound, TooLarge
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, Command
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.operator import Operator, Options

Raw = dict[str, Any]

_MiB = 2**20
_JOBS_PER_NAMESPACE = 100
_TIME = "2026-01-02T03:04:05Z"


@dataclass
class Server:
    """An API server with so many jobs, whose pods run. `asked` are the requests by method and resource."""

    args: argparse.Namespace
    written: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    version: int = 10**9
    _made: tuple[int, TFJob, TFJobSpec, TFConfigs] | None = None

    def fenced(self, _: Any) -> "Server":
        return self

    async def get(self, path: str, *, accept: str = "", most_bytes: int | None = None, **params: str) -> Raw:
        self._count("get", path)
        resource_ = path.rpartition("/")[2]
        begin = int(params.get("continue", "0"))
        # All pods are those of jobs: there are no others.
        most = 0 if "!=" in params.get("labelSelector", "") else self._size(resource_)
        end = min(begin + int(params.get("limit", most)), most)
        metadata: Raw = {"resourceVersion": str(10**9)}
        if end < most:
            metadata["continue"] = str(end)
        # In a thread, where the work of a server holds nobody up for long.
        answer = await asyncio.to_thread(self._page, resource_, range(begin, end), metadata, most_bytes)
        found: Raw = orjson.loads(answer)
        return found

    def _page(self, resource_: str, indices: range, metadata: Raw, most_bytes: int | None) -> bytes:
        """No more of it than is asked for: what a server takes for its answer is not the operator's memory."""
        items, size = [], 0
        for index in indices:
            items.append(orjson.dumps(self._object(resource_, index)))
            size += len(items[-1])
            if most_bytes is not None and size > most_bytes:
                raise TooLarge("GET", 0, "TooLarge", "")
        return b'{"items":[%b],"metadata":%b}' % (b",".join(items), orjson.dumps(metadata))

    async def watch(self, path: str, *, version: str, accept: str = "", **params: str) -> AsyncIterator[Raw]:
        self._count("watch", path)
        await asyncio.Event().wait()
        yield {}

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = "") -> Raw:
        return self._write("patch", path, body)

    async def put(self, path: str, body: Mapping[str, Any]) -> Raw:
        return self._write("put", path, body)

    async def post(self, path: str, body: Mapping[str, Any]) -> Raw:
        self._count("post", path)
        return _sent(
            {**body, "metadata": {"name": "x", **body.get("metadata", {}), "uid": "u", "resourceVersion": "1"}}
        )

    async def delete(self, path: str, *, uid: str, **options: Any) -> Raw:
        raise NotFound(path, 404, "NotFound", "nothing is deleted here")

    async def raw(self, path: str, timeout_s: float, limit: int) -> bytes:
        self._count("raw", path)
        return _status(time.time())

    def _count(self, method: str, path: str) -> None:
        parts = path.split("/")
        what = f"{method} {next((each for each in reversed(parts) if each.isalpha()), '')}"
        self.asked[what] = self.asked.get(what, 0) + 1

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> Raw:
        self._count(method, path)
        place = path.removesuffix("/status")
        if "tfjobs" not in place:
            raise NotFound(path, 404, "NotFound", "only jobs are written here")
        known = self._job(int(place.rpartition("-")[2]))
        if place in self.written:
            known = {**known, **orjson.loads(zlib.decompress(self.written[place]))}
        annotations = known["metadata"]["annotations"] | dict(body["metadata"].get("annotations", {}))
        self.version += 1
        metadata = {**known["metadata"], "annotations": annotations, "resourceVersion": str(self.version)}
        metadata["annotations"] = {name: text for name, text in annotations.items() if text is not None}
        after = {**known, "metadata": metadata, "status": body.get("status", known["status"])}
        kept = orjson.dumps({"metadata": metadata, "status": after["status"]})
        self.written[place] = zlib.compress(kept, 1)
        return _sent(after)

    @property
    def _types(self) -> dict[str, int]:
        return {"PS": 1, "Worker": self.args.workers}

    def _size(self, resource_: str) -> int:
        replicas = sum(self._types.values())
        sizes: dict[str, int] = {
            "tfjobs": self.args.jobs,
            "pods": self.args.jobs * replicas if not self.args.no_pods else 0,
            "services": self.args.jobs * replicas if not self.args.no_pods else 0,
            "nodes": self.args.nodes,
            "configmaps": 1,
        }
        return sizes.get(resource_, 0)

    def _object(self, resource_: str, index: int) -> Raw:
        match resource_:
            case "tfjobs":
                return self._job(index)
            case "pods":
                return self._pod(index)
            case "services":
                return self._service(index)
            case "nodes":
                return _node(index)
            case _:
                text = orjson.dumps({"profile": self.args.profile}).decode()  # JSON is YAML
                return {**_metadata("operator", "configuration", "config"), "data": {"config.yaml": text}}

    def _job(self, index: int) -> Raw:
        namespace, name = f"team-{index // _JOBS_PER_NAMESPACE}", f"job-{index}"
        spec = {"tfReplicaSpecs": {kind: self._replica(count) for kind, count in self._types.items()}}
        filler = self.args.job_bytes - len(orjson.dumps(spec)) - 2000
        if filler > 0:
            env = spec["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
            env += [{"name": f"SETTING_{i}", "value": os.urandom(30).hex()} for i in range(filler // 90)]
        annotations = {"example.com/team": f"team-{index // _JOBS_PER_NAMESPACE}"}
        if self.args.elastic:
            uid, counts = f"{name}-uid-0000-0000-0000-000000000000", self._types
            state = StoredState("Stable", 3, replicas=counts, since=_TIME, reason="room for them", step=100)
            target = Target(3, counts, reason="room for them", declared=counts)
            annotations |= {
                f"{PREFIX}max-workers": str(self.args.workers),
                STATE_ANNOTATION: state.to_json(uid),
                TARGET_ANNOTATION: target.to_json(uid),
            }
        job = _metadata(namespace, name, name, annotations=annotations)
        job["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = orjson.dumps(spec).decode()
        job["metadata"]["managedFields"] = [
            {"manager": "kubectl", "fieldsV1": {"f:spec": {f"f:{i}": {}}}} for i in range(9)
        ]
        condition = {"status": "True", "lastUpdateTime": _TIME, "lastTransitionTime": _TIME}
        kinds = {"Created": f"TFJob {name} is created.", "Running": f"TFJob {namespace}/{name} is running."}
        conditions = [{**condition, "type": t, "reason": f"TFJob{t}", "message": text} for t, text in kinds.items()]
        active = {kind: {"active": count} for kind, count in self._types.items()}
        return {
            **job,
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "spec": spec,
            "status": {"conditions": conditions, "replicaStatuses": active, "startTime": _TIME},
        }

    def _replica(self, count: int) -> Raw:
        container = {
            "name": "tensorflow",
            "image": "registry.example.com/team/training:2026-01-02",
            "command": ["python", "/train/train.py", "--model=resnet50", "--batch-size=256"],
            "env": [{"name": f"SETTING_{i}", "value": f"a value of usual length {i}"} for i in range(10)],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        template = {"spec": {"containers": [container], "volumes": [claim]}}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    def _place(self, index: int) -> tuple[TFJob, TFJobSpec, TFConfigs, str, int]:
        """A replica's job, what its replicas have in common, its type and index."""
        number, at = divmod(index, sum(self._types.values()))
        made = self._made
        if made is None or made[0] != number:
            job = TFJob.parse(self._job(number))
            spec = job.spec()
            self._made = made = number, job, spec, TFConfigs(job, spec)
        return made[1], made[2], made[3], "Worker" if at else "PS", max(0, at - 1)

    def _pod(self, index: int) -> Raw:
        job, spec, configs, kind, number = self._place(index)
        pod = render_pod(job, spec, kind, number, configs=configs)
        metadata = pod["metadata"]
        if self.args.elastic:
            inject(pod, "both", "registry.example.com/elastic-tfjob/operator:1", None)
            command = Command(3, "run", "".join(configs.parts(kind, number)))
            metadata["annotations"] = {COMMAND_ANNOTATION: command.to_json()}
        metadata |= _metadata(job.namespace, metadata["name"], metadata["name"])["metadata"] | {
            key: metadata[key] for key in ("labels", "ownerReferences", "annotations") if key in metadata
        }
        pod["spec"]["nodeName"] = f"node-{index % self.args.nodes}"
        ready = [
            {"type": kind, "status": "True", "lastTransitionTime": _TIME}
            for kind in ("PodScheduled", "Initialized", "Ready", "ContainersReady")
        ]
        pod["status"] = {
            "phase": "Running",
            "podIP": f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
            "conditions": ready,
            "containerStatuses": [
                {"name": "tensorflow", "restartCount": 0, "state": {"running": {"startedAt": _TIME}}, "ready": True}
            ],
        }
        return pod

    def _service(self, index: int) -> Raw:
        job, spec, _, kind, number = self._place(index)
        made = render_service(job, spec, kind, number)["metadata"]
        return {"metadata": {**_metadata(job.namespace, made["name"], made["name"] + "-svc")["metadata"], **made}}


def _metadata(namespace: str, name: str, uid: str, **more: Any) -> Raw:
    uid = f"{uid}-uid-0000-0000-0000-000000000000"
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "resourceVersion": "7",
            "creationTimestamp": _TIME,
            **more,
        }
    }


def _node(index: int) -> Raw:
    found = _metadata("", f"node-{index}", f"node-{index}")
    found["metadata"]["labels"] = {"kubernetes.io/hostname": f"node-{index}", "kubernetes.io/arch": "amd64"}
    amounts = {"cpu": "10000", "memory": "100Ti", "pods": "110"}
    return {**found, "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}}


def _status(now: float) -> bytes:
    """A pod's answer: it has trained for long, and its loss differs each time."""
    return orjson.dumps(
        {
            "at": now,
            "generation": 3,
            "launcher": True,
            "hook": True,
            "modes": ["overlap", "spare"],
            "step": int(now),
            "steps_per_s": 10.0,
            "loss": 1 / now,
            "first_step_at": 1.0,
            "last_step_at": now,
            "checkpoint": {
                "step": int(now) // 100 * 100,
                "at": now,
                "seconds": 1.5,
                "bytes": 10**8,
                "path": "/data/ck",
            },
            "cpu": {"at": now, "usage_s": now, "limit_cores": 1.0, "throttled_s": 0.0},
            "memory": {"used_bytes": 10**9, "limit_bytes": 2 * 10**9},
        }
    )


def _sent(answer: Raw) -> Raw:
    """As it comes from the wire: no text in it is shared with another."""
    sent: Raw = orjson.loads(orjson.dumps(answer))
    return sent


def resident() -> int:
    """Bytes of physical memory that the process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Collections:
    """CPU time in seconds of the garbage collector's longest run."""

    def __init__(self) -> None:
        self.longest_s = self._begun = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._begun)


async def longest_delay(delays: list[float]) -> None:
    """Note how late the loop is, for ever."""
    while True:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        delays.append(max(0.0, time.monotonic() - due))


async def measure(args: argparse.Namespace) -> None:
    """Have the operator read everything, come to rest, and then watch it doing nothing."""
    server = Server(args)
    config_map = "operator/configuration" if args.profile != "fixed" else ""
    options = Options(
        metrics_address="0", health_address="0", config_map=config_map, status_via="proxy", image="operator:1"
    )
    operator = Operator(server, options)  # type: ignore[arg-type]
    before = resident()
    if args.holders:
        tracemalloc.start(8)
    stop, delays, collections = asyncio.Event(), list[float](), Collections()
    begun = time.monotonic()
    run = asyncio.create_task(operator.run(stop))
    late = asyncio.create_task(longest_delay(delays))
    while not operator._leads or len(operator._queue) or operator._queue._handled:
        await asyncio.sleep(0.2)
        if run.done():
            raise RuntimeError(run.result())
    print(
        f"read and at rest after {time.monotonic() - begun:.1f} s; loop late by {1000 * max(delays):.0f} ms at most, "
        f"of which the garbage collector {1000 * collections.longest_s:.0f} ms"
    )
    await asyncio.sleep(args.settle_s)
    gc.collect()
    after = resident()
    caches = operator._caches
    counts = {"jobs": len(caches.jobs), "pods": len(caches.pods), "services": len(caches.services)}
    reports = sum(len(operator._reports.of_job(key)) for key in caches.jobs.keys)
    print(f"{counts}, {reports} reports: {after / _MiB:.0f} MiB, of which {(after - before) / _MiB:.0f} for them")
    if args.holders:
        shown = tracemalloc.take_snapshot().statistics("lineno")
        for each in shown[:25]:
            frame = each.traceback[-1]
            place = "/".join(frame.filename.split("/")[-2:])
            print(f"  {each.size / _MiB:8.1f} MiB {each.count:9} {place}:{frame.lineno}")
        tracemalloc.stop()
    delays.clear()
    collections.longest_s = 0.0
    server.asked.clear()
    used, begun = time.process_time(), time.monotonic()
    await asyncio.sleep(args.idle_s)
    share = (time.process_time() - used) / (time.monotonic() - begun)
    print(
        f"idle for {args.idle_s:.0f} s: {100 * share:.2f} % of a core; loop late by {1000 * max(delays):.0f} ms at most"
    )
    print(f"  requests: {server.asked}; {resident() / _MiB:.0f} MiB; garbage {1000 * collections.longest_s:.0f} ms")
    stop.set()
    late.cancel()
    await run


def main() -> None:
    """Print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=3, help="of each job, beside a parameter server")
    parser.add_argument("--job-bytes", type=int, default=0, help="fill each spec up to so many bytes")
    parser.add_argument("--elastic", action="store_true", help="jobs that were rescaled, with launchers that report")
    parser.add_argument("--no-pods", action="store_true")
    parser.add_argument("--profile", default="fixed")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--settle-s", type=float, default=5.0)
    parser.add_argument("--idle-s", type=float, default=30.0)
    parser.add_argument("--holders", action="store_true", help="the lines that allocated most (the rest takes longer)")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
