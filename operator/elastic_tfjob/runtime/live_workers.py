"""`LiveWorkers`: workers join a running `ClusterCoordinator` of TensorFlow, and leave it, while it trains.

When a worker that was away returns, TensorFlow's coordinator calls `context.update_server_def`. With other workers the
same call changes the cluster: the parameter servers with their variables, the traced functions, the chief's program and
the other workers stay as they are. Nothing is saved or restored.

A worker is to the coordinator:

- a *task number* and address in the chief's server definition, which name its device. A new worker gets a number that
  no present worker has. Numbers may have gaps;
- a *place*: an index of `cluster.workers`, without gaps. There is a `Worker` with a thread, which takes closures from
  the queue, and a value in each `PerWorkerValues`, such as an iterator. A place may get another task number.

To add workers, a thread of this module connects to them, updates the server definition and builds their values, while
training goes on. Nothing of the program has changed until then, so an error there only refuses the change. The main
thread then exchanges `Worker`s and values between two steps, which takes about a millisecond. Afterwards a thread has
TensorFlow forget the workers that have left: it sends each new function to every server that it knows, and waits for
those that do not answer.
"""

from __future__ import annotations

import copy
import functools
import gc
import operator
import os
import resource
import socket
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from elastic_tfjob.runtime.protocol import brief

__all__ = ["LiveWorkers"]

_CONNECT_S, _RETRY_S = 2.0, 0.2
"""One try to connect to a new worker takes at most this long, and the next one begins after the second time: the name
of a new pod may not resolve yet, or its server may not listen yet."""
_UPDATES = 250
"""At most this many updates of the server definition in one process. Each leaves 4 threads and 0.2 MB in the chief, and
2 threads in a parameter server, for ever."""
_FILES_PART = 0.5
"""No update where more than this part of the files is open that the chief may have open: with TensorFlow before 2.20,
each leaves 7 open for ever."""
_UPDATE_S = 10.0
"""A function is registered with the servers after this time at the latest, though an update of them is under way."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2, and so of gRPC, begins: the preface and empty settings. The server answers with its own."""
_SETTINGS = 4


# -- What this module uses of TensorFlow that is not in its API --------------------------------------------------------

_OF_MODULE = (
    "ClusterCoordinator",
    "Worker._process_closure",
    "Worker._process_resource_closure",
    "Worker._register_resource",
    "ResourceClosure.execute_on",
    "WorkerPreemptionHandler",
    "PerWorkerValues",
)
_OF_COORDINATOR = (
    "strategy._num_workers",
    "strategy._extended._num_workers",
    "_cluster._num_workers",
    "_cluster.workers",
    "_cluster.resource_cancellation_mgr",
    "_cluster.failure_handler._server_def",
    "_cluster.failure_handler._cluster_update_lock",
    "_cluster.failure_handler._cluster_due_for_update_or_finish",
    "_cluster.closure_queue.put_back",
    "_cluster.closure_queue._queue",
    "_cluster.closure_queue._inflight_closure_count",
)


class _Made:
    """The objects of a class that exist. Its constructor is replaced, once in a process."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._references: dict[weakref.ref[Any], None] = {}
        original = kind.__init__

        def construct(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.note(made)

        kind.__init__ = construct

    def note(self, made: Any) -> None:
        self._references[weakref.ref(made, lambda gone: self._references.pop(gone, None))] = None

    def all(self) -> list[Any]:
        """Those that exist now; callable in any thread."""
        found = (reference() for reference in list(self._references))
        return [each for each in found if each is not None]


class _Registration:
    """A lock around what registers functions with the servers. TensorFlow sends a new function to each server that it
    knows, and fails for one that an update of the server definition takes away meanwhile. Methods of the context are
    replaced, once in a process."""

    def __init__(self, kind: Any) -> None:
        self.lock = threading.RLock()
        for name in ("add_c_function", "add_function", "add_function_def", "remove_function"):
            if hasattr(kind, name):
                setattr(kind, name, self._locked(getattr(kind, name)))

    def _locked(self, method: Any) -> Any:
        @functools.wraps(method)
        def wait(*args: Any, **kwargs: Any) -> Any:
            held = self.lock.acquire(timeout=_UPDATE_S)  # an update may hang on a server that stopped answering
            try:
                return method(*args, **kwargs)
            finally:
                if held:
                    self.lock.release()

        return wait


class _TensorFlow:
    """TensorFlow's modules, and the coordinators and values for each worker that the program made. Raises ImportError
    or AttributeError for a version that lacks a name."""

    def __init__(self) -> None:
        from tensorflow.python.distribute.coordinator import cluster_coordinator  # noqa: PLC0415
        from tensorflow.python.eager import context, executor  # noqa: PLC0415

        operator.attrgetter(*_OF_MODULE)(cluster_coordinator)
        operator.attrgetter("get_server_def", "Context.update_server_def")(context)
        self.classes, self.context, self.new_executor = cluster_coordinator, context, executor.new_executor
        self.registration = _Registration(context.Context)
        self.coordinators = _Made(cluster_coordinator.ClusterCoordinator)
        self.per_worker = _Made(cluster_coordinator.PerWorkerValues)
        # Only now: a search of the heap takes long enough to be noticed in training.
        for each in gc.get_objects():
            for known in (self.coordinators, self.per_worker):
                if issubclass(type(each), known.kind):
                    known.note(each)


_tensorflow = functools.cache(_TensorFlow)  # constructors are replaced once in a process


def _thread(target: Any, argument: Any) -> threading.Thread:
    return threading.Thread(target=target, args=(argument,), name="elastic-live-workers", daemon=True)


def _device(task: int) -> str:
    return f"/job:worker/replica:0/task:{task}"


def _task(worker: Any) -> int:
    return int(worker.device_name.rpartition(":")[2])


def _workers_of(definition: Any) -> Any:
    """The addresses of job `worker` by task number, in a server definition."""
    return next(job.tasks for job in definition.cluster.job if job.name == "worker")


# -- One change --------------------------------------------------------------------------------------------------------


class _Change:
    """A change of the workers, from `start` to its outcome.

    `places`: address and task number of each place after the change. `before`: the same now. `limit_s`: seconds until
    it is refused unless it is applied.
    """

    def __init__(self, before: list[tuple[str, int]], wanted: Sequence[str], limit_s: float) -> None:
        self.before, self.limit_s, self.until_s = before, limit_s, time.monotonic() + limit_s
        present = {address for address, _ in before}
        used = {task for _, task in before}
        free = (task for task in range(len(before) + len(wanted)) if task not in used)
        self.new = [(address, next(free)) for address in dict.fromkeys(wanted) if address not in present]
        leaving = [place for place, (address, _) in enumerate(before) if address not in wanted]
        self.places = list(before)
        for member in self.new:
            if leaving:
                self.places[leaving.pop(0)] = member
            else:
                self.places.append(member)
        for place in reversed(leaving):  # all above have stayed: the last one takes the place of one that leaves
            last = self.places.pop()
            if place < len(self.places):
                self.places[place] = last
        self.sites: dict[int, Any] = {}
        """By task number: what stands for a new `Worker` until it exists."""
        self.definition: Any = None
        """The server definition that has the new workers, once TensorFlow uses it."""
        self.built: dict[int, tuple[Any, dict[int, Any]]] = {}
        """By the id of a value at place 0: that value, and the new workers' values by task number."""
        self.ready = False
        self.outcome: tuple[bool, str] | None = None


class _RefusedError(Exception):
    """The change cannot be made; the message says why."""


class LiveWorkers:
    """The workers of this program's ClusterCoordinator.

    `start`, `cancel`, `outcome`, `unable` and `addresses` belong to one thread, which is not the main one; `apply` to
    the thread that trains. None of them waits for a server. `tf`: TensorFlow. Never raises.
    """

    def __init__(self, tf: Any) -> None:
        self._lock = threading.Lock()  # held for moments only, never while TensorFlow works
        self._change: _Change | None = None
        self._thread: threading.Thread | None = None  # the last one that called TensorFlow
        self._updates = 0
        self._why = ""
        try:
            self._tf = _tensorflow()
        except (ImportError, AttributeError) as error:
            self._why = f"TensorFlow {getattr(tf, '__version__', '')} is not known: {brief(error)}"

    # -- the reporting thread ------------------------------------------------------------------------------------------

    def unable(self) -> str:
        """Why the workers cannot be changed now, as a clause; empty if they can."""
        if self._why:
            return self._why
        if self.outcome is not None and self._working():
            return "a change did not end"
        if self._updates >= _UPDATES:
            return f"the workers were changed {_UPDATES} times in this process"
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY and len(os.listdir("/proc/self/fd")) > files * _FILES_PART:
            return f"many of the {files} files that the process may have open are open"
        coordinators = self._tf.coordinators.all()
        if len(coordinators) != 1:
            return f"the program has {len(coordinators) or 'no'} ClusterCoordinator{'s'[: len(coordinators)]}"
        try:
            return self._unable(coordinators[0])
        except AttributeError as error:
            return f"this version of TensorFlow is not known: {brief(error)}"

    def _unable(self, coordinator: Any) -> str:
        operator.attrgetter(*_OF_COORDINATOR)(coordinator)
        handler = coordinator._cluster.failure_handler
        if not isinstance(handler, self._tf.classes.WorkerPreemptionHandler):
            return "TF_PSS_ENABLE_COORDINATION_SERVICE is set"
        return "a worker is away" if handler._cluster_due_for_update_or_finish.is_set() else ""

    def addresses(self) -> list[str]:
        """The addresses of the present workers, by place; empty without a coordinator."""
        try:
            return [address for address, _ in self._members()]
        except (AttributeError, LookupError):
            return []

    def _cluster(self) -> Any:
        return self._tf.coordinators.all()[0]._cluster

    def _members(self) -> list[tuple[str, int]]:
        cluster = self._cluster()
        tasks = _workers_of(cluster.failure_handler._server_def)
        return [(tasks[_task(worker)], _task(worker)) for worker in list(cluster.workers)]

    def start(self, workers: Sequence[str], limit_s: float) -> None:
        """Begin to change to the workers at these addresses, in any order; `ready` and `outcome` tell how it goes on.

        `limit_s`: seconds. A change that is not applied by then is refused. Nothing happens while another is under way.
        """
        if self._change is not None and self._change.outcome is None:
            return
        why = self.unable() or ("" if workers else "at least one worker must stay")
        change = self._change = _Change([] if why else self._members(), workers, limit_s)
        if why:
            change.outcome, change.until_s = (False, why), 0.0  # whatever another change still does
        else:
            self._prepare(change)

    def _prepare(self, change: _Change) -> None:
        """Have a thread build what is missing; without additions nothing is."""
        if change.new:
            _thread(self._build, change).start()
        else:
            change.ready = True

    def _working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether the next `apply` has something to do."""
        change = self._change
        return change is not None and change.ready

    @property
    def outcome(self) -> tuple[bool, str] | None:
        """None while a change is under way, or before the first; (True, "") once it is made, and TensorFlow knows the
        workers that left no more; (False, why) if it is refused, and then the workers are as before."""
        change = self._change
        if change is None:
            return None
        late = time.monotonic() >= change.until_s
        if late:
            self._refuse(change, f"it took longer than {change.limit_s:g} s")
        return change.outcome if late or not self._working() else None

    def cancel(self) -> bool:
        """Give up the change; False if it is made already."""
        change = self._change
        if change is not None:
            self._refuse(change, "cancelled")
        return change is None or change.outcome != (True, "")

    def _refuse(self, change: _Change, why: str) -> None:
        with self._lock:
            if change.outcome is not None:
                return
            change.ready, change.outcome = False, (False, why)
            known = change.definition is not None
        if known:
            self._start_forgetting(change.built)

    def _start_forgetting(self, built: Any) -> None:
        self._thread = _thread(self._forget, built)
        self._thread.start()

    # -- the thread that prepares --------------------------------------------------------------------------------------

    def _build(self, change: _Change) -> None:
        """Connect to the new workers, have TensorFlow know them, and build their values."""
        try:
            for address, _ in change.new:
                self._reach(change, address)
            self._thread = threading.current_thread()
            if change.definition is None:
                self._update(change)
            for per_worker in self._missing(change):
                self._build_values(change, per_worker._values[0])
        except Exception as error:
            for site in change.sites.values():
                site.executor.clear_error()  # else it is raised again, and printed, when the executor ends
            self._refuse(change, str(error) if isinstance(error, _RefusedError) else brief(error))
        else:
            with self._lock:
                change.ready = change.outcome is None
            if not change.ready:  # refused while TensorFlow was at work
                self._forget(change.built)

    def _reach(self, change: _Change, address: str) -> None:
        """Return once a gRPC server answers at this address. TensorFlow would wait for it without a limit."""
        why = ""
        while change.outcome is None and (left_s := change.until_s - time.monotonic()) > 0:
            try:
                host, _, port = address.rpartition(":")
                with socket.create_connection((host.strip("[]"), int(port)), min(_CONNECT_S, left_s)) as connection:
                    connection.sendall(_HELLO)
                    answer = connection.recv(9, socket.MSG_WAITALL)
                if len(answer) == 9 and answer[3] == _SETTINGS:
                    return
                why = "no gRPC server answers"
            except TimeoutError:
                why = "no answer"
            except (OSError, ValueError) as error:
                why = brief(error)
            time.sleep(_RETRY_S)
        raise _RefusedError(f"worker {address} cannot be reached: {why}")

    def _update(self, change: _Change) -> None:
        """Have TensorFlow connect to the new workers. Those that left before are dropped: their servers may be gone."""
        handler = self._cluster().failure_handler
        # TensorFlow calls the same function, under this lock, when a worker returns.
        with handler._cluster_update_lock:
            if handler._cluster_due_for_update_or_finish.is_set():
                raise _RefusedError("a worker is away")
            definition = copy.deepcopy(handler._server_def)
            tasks = _workers_of(definition)
            for address, task in change.new:
                tasks[task] = address
            self._tell(definition)
            change.definition = definition

    def _tell(self, definition: Any) -> None:
        self._updates += 1
        with self._tf.registration.lock:
            self._tf.context.context().update_server_def(definition)

    def _forget(self, _: Any) -> None:
        """Have TensorFlow forget the workers that have left. The argument is what they had built: its end is a message
        to their servers while TensorFlow knows these."""
        handler = self._cluster().failure_handler
        try:
            with handler._cluster_update_lock:
                if not handler._cluster_due_for_update_or_finish.is_set():  # else TensorFlow does it with the recovery
                    self._tell(copy.deepcopy(handler._server_def))
        except Exception as error:  # they stay known until the next change
            print(f"WARNING: workers that left are not forgotten: {brief(error)}", file=sys.stderr, flush=True)

    def _missing(self, change: _Change) -> list[Any]:
        """The PerWorkerValues for which the new workers have no values yet."""
        return [each for each in self._per_worker(change) if id(each._values[0]) not in change.built]

    def _per_worker(self, change: _Change) -> list[Any]:
        n = len(change.before)
        return [each for each in self._tf.per_worker.all() if n == len(each._values)]

    def _build_values(self, change: _Change, first: Any) -> None:
        """Build the value that `first` is at place 0 on each new worker, by the same function."""
        source = first._closure
        if source is None:
            raise _RefusedError("a value of each worker cannot be built anew")
        values = {}
        for place, member in enumerate(change.places):
            if member not in change.new:
                continue
            task = member[1]
            if task not in change.sites:
                executor = self._tf.new_executor(enable_async=False)
                change.sites[task] = SimpleNamespace(worker_index=place, device_name=_device(task), executor=executor)
            closure = type(source)(source._function, self._cluster().resource_cancellation_mgr)
            closure._args, closure._kwargs = source._args, source._kwargs
            value = values[task] = closure.build_output_remote_value()
            value._type_spec = first._type_spec
            closure.execute_on(change.sites[task])
        change.built[id(first)] = (first, values)

    # -- the thread that trains ----------------------------------------------------------------------------------------

    def apply(self) -> int:
        """Make the change, if it is prepared; returns the number of workers then, else 0. To be called with nothing in
        flight; else it waits for the next call."""
        change = self._change
        if change is None or not change.ready or time.monotonic() >= change.until_s:
            return 0
        cluster = self._cluster()
        lock = cluster.failure_handler._cluster_update_lock
        if not lock.acquire(blocking=False):
            return 0  # a worker returns
        try:
            self._exchange(change, cluster)
        except Exception as error:
            self._refuse(change, str(error) if isinstance(error, _RefusedError) else brief(error))
        finally:
            lock.release()
        return len(change.places) if change.outcome == (True, "") else 0

    def _exchange(self, change: _Change, cluster: Any) -> None:
        queue, handler = cluster.closure_queue, cluster.failure_handler
        if handler._cluster_due_for_update_or_finish.is_set():
            raise _RefusedError("a worker is away")
        if change.new and self._tf.context.get_server_def() is not change.definition:
            raise _RefusedError("a worker was away meanwhile")
        per_worker = self._per_worker(change)
        ready = all(value._status_available_event.is_set() for each in per_worker for value in each._values)
        if not ready or queue._inflight_closure_count or not queue._queue.empty():
            return
        if change.new and self._missing(change):
            change.ready = False
            self._prepare(change)
            return
        place_before = {task: place for place, (_, task) in enumerate(change.before)}
        values_before, values = [each._values for each in per_worker], []
        for before in values_before:
            new = change.built[id(before[0])][1] if change.new else {}
            values.append(tuple(new[task] if task in new else before[place_before[task]] for _, task in change.places))
        n = len(change.places)
        changed = [place for place in range(n) if [change.places[place]] != change.before[place : place + 1]]
        made = self._make(change, changed, values, cluster)
        with self._lock:
            refused = change.outcome is not None
            if not refused:
                change.outcome, change.ready = (True, ""), False
        if refused:
            for worker in made.values():
                self._dismiss(worker, cluster)
            return
        for each, now in zip(per_worker, values):
            each._values = now
        change.built, change.sites = {}, {}
        definition = copy.deepcopy(handler._server_def)
        tasks = _workers_of(definition)
        tasks.clear()
        tasks.update({task: address for address, task in change.places})
        handler._server_def = definition  # a recovery would wait for a worker that has left
        gone = [*cluster.workers[n:], *(cluster.workers[place] for place in changed if place < len(change.before))]
        for worker in gone:
            self._dismiss(worker, cluster)
        del cluster.workers[n:]
        for place, worker in made.items():
            cluster.workers[place : place + 1] = [worker]
        strategy = self._tf.coordinators.all()[0].strategy
        cluster._num_workers = strategy._num_workers = strategy._extended._num_workers = n
        if {task for _, task in change.before} - {task for _, task in change.places}:
            self._start_forgetting(values_before)

    def _make(self, change: _Change, places: list[int], values: list[Any], cluster: Any) -> dict[int, Any]:
        """The Workers for these places. All that may fail comes first: raises what TensorFlow raises, and then there is
        none of them."""
        made: dict[int, Any] = {}
        try:
            for place in places:
                made[place] = self._tf.classes.Worker(place, _device(change.places[place][1]), cluster)
                for of_workers in values:
                    made[place]._register_resource(of_workers[place])
        except Exception:
            for worker in made.values():
                self._dismiss(worker, cluster)
            raise
        return made

    def _dismiss(self, worker: Any, cluster: Any) -> None:
        """Have the Worker's thread end. Another Worker may have its place already and take the closure that wakes it;
        then it ends with the next closure it gets, and passes that on."""
        wake = self._tf.classes.ResourceClosure(lambda: None, cluster.resource_cancellation_mgr)

        def pass_on(closure: Any) -> None:
            worker.stop()
            cluster.closure_queue.put_back(closure)

        def build_for_other(closure: Any) -> None:
            worker.stop()
            if closure is not wake:
                cluster.workers[closure.tag]._process_resource_closure(closure)

        worker._process_closure, worker._process_resource_closure = pass_on, build_for_other
        cluster.closure_queue.put(wake, tag=worker.worker_index)
