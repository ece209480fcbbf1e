"""`ElasticCheckpoint`: what a training program uses to report, to be checkpointed, and to go on with another size.

    elastic = ElasticCheckpoint(tf.train.Checkpoint(model=model, optimizer=optimizer), total_steps=2000)
    step = elastic.resume(warm_up=one_step)
    while step < 2000:
        loss = one_step()
        step += 1
        elastic.step(step, loss=loss, examples=32)

With Keras: `model.fit(data, callbacks=[elastic.callback()])`. Without launcher and operator it is a plain checkpoint:
saved at intervals and on SIGTERM, resumed from at the next start.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import preload, protocol, shared_folder_probe
from elastic_tfjob.runtime.checkpoints import Checkpoints
from elastic_tfjob.runtime.keras_callback import callback
from elastic_tfjob.runtime.progress import Progress, scalar, whole
from elastic_tfjob.runtime.protocol import brief

# -- A training program's side of the files that it shares with its launcher: see protocol.py --------------------------


class Hello:
    """What one generation's program says and is told. Without a launcher it says nothing, and nothing holds it back.

    `shared`, `generation`: the pod's directory and the program's generation, as in its environment. Raises ValueError
    for a generation that is no number.
    """

    def __init__(self, shared: str | None, generation: str | None) -> None:
        self.folder: Path | None = None
        if shared and generation:
            self.folder = protocol.generation_directory(Path(shared), int(generation))

    def hello(self) -> None:
        """Tell the launcher that this program can be rescaled, and what it set before it imported TensorFlow."""
        if self.folder is None:
            return
        hello = {"pid": os.getpid(), "environment": preload.library_variables(os.environ)}
        preload.report_imports()
        with contextlib.suppress(OSError):
            protocol.write(self.folder.parent / protocol.HELLO, hello)
            protocol.write(self.folder / protocol.HELLO, hello)

    def is_closed(self) -> bool:
        """Whether the launcher holds this program back: its generation is prepared beside the one that runs."""
        return (
            self.folder is not None and not os.environ.get(protocol.OPEN) and not (self.folder / protocol.GO).exists()
        )

    def say_ready(self) -> None:
        """Raises OSError: who cannot say so would wait for ever."""
        if self.folder is not None:
            protocol.write(self.folder / protocol.READY, {"pid": os.getpid()})

    def say_begun(self) -> None:
        """This worker has begun with its chief."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                protocol.write(self.folder / protocol.BEGUN, {"pid": os.getpid(), "at": time.time()})

    def request(self) -> str | None:
        """The id of the save that is asked for now, if one is."""
        if self.folder is None or not (self.folder / protocol.SAVE).exists():
            return None
        return (protocol.read(self.folder / protocol.SAVE) or {}).get("id")

    def answer(self, request: str, step: int, *, ok: bool, why: str | None) -> None:
        """To a request to save."""
        assert self.folder is not None
        answer = {"id": request, "ok": ok, "why": why, "step": step, "at": time.time()}
        try:
            protocol.write(self.folder / protocol.SAVED, answer)
        except OSError as error:  # no answer: the launcher will give up after its time-out
            print(f"cannot answer the launcher: {error}", file=sys.stderr, flush=True)


def imported() -> None:
    """Tell the launcher that this program has the hook, though it may take long until it uses it."""
    with contextlib.suppress(OSError, ValueError):
        folder = Hello(os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)).folder
        if folder is not None:
            protocol.write(folder / protocol.IMPORTED, {})


# -- How the workers of a MultiWorkerMirroredStrategy decide alike: each learns the sum of what all say ----------------


class StartBarrier:
    """Sums over all workers of a MultiWorkerMirroredStrategy, by which they decide alike. Every worker must call in the
    same order."""

    def __init__(self, tf: Any, strategy: Any) -> None:
        self._tf, self._strategy = tf, strategy

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def total(values: Any) -> Any:
            def reduce(values: Any) -> Any:
                here = tf.identity(values)  # an argument is on no device, and only what is on one can be summed
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

            return strategy.run(reduce, args=(values,))

        self._total = total

    def all(self, here: bool) -> bool:
        """Whether it is so in every worker. Raises as `sum` does."""
        return not self.sum(int(not here))[0]

    def sum(self, *values: int) -> list[int]:
        """The sum of each value. Raises what TensorFlow raises when a worker is gone."""
        results = self._strategy.experimental_local_results(self._total(self._tf.constant(values, self._tf.int64)))
        # Every replica of a worker brings the worker's value, so a chief's own value comes back once per replica.
        return [int(value) // len(results) for value in results[0].numpy()]


def needed(tf: Any, strategy: Any) -> bool:
    """Whether there are other workers to agree with."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > len(
        strategy.extended.worker_devices
    )


# A chief whose training would wait for ever is ended, so that its container is started again and goes on.
#
# TensorFlow's ClusterCoordinator has a thread for each worker. Where a parameter server is lost while a worker is away
# (a node that had both, for instance), that thread fails on a check of its own, "There is no inflight closures to
# mark_failed", and nobody hears of the lost parameter server: `join()` never returns (seen with TensorFlow 2.21).

THREADS = "WorkerClosureProcessingLoop-"
"""What TensorFlow calls them."""
_FAILED = 1
"""As a program ends that does not catch the error of a lost parameter server."""


@functools.cache  # the hook of the first call would be called by the second one's
def end_with_its_threads() -> None:
    """From now on this process ends where one of those threads does by an error, which is printed as before. Other
    threads are none of its business. Once is enough."""
    before = threading.excepthook

    def hook(arguments: Any) -> None:
        before(arguments)
        thread = arguments.thread
        if thread is None or not thread.name.startswith(THREADS) or arguments.exc_type is SystemExit:
            return
        print(
            "elastic-tfjob: a parameter server was lost while a worker was away, of which TensorFlow's coordinator "
            "does not tell the program. It ends, to go on from its last checkpoint.",
            file=sys.stderr,
        )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(_FAILED)

    threading.excepthook = hook


_POLL_S = 0.005
_FIRST_S = 5.0
"""The first checkpoint of a program comes so soon, whatever the interval: it shows whether saving works at all, and
makes parameter servers connect to the chief. At SIGTERM they could not: a pod that is ended has no name any more."""
_AGREE_S = 0.25
"""How often the workers of a MultiWorkerMirroredStrategy ask each other whether one of them was told to save."""
_KILLED_S = 60.0
_DURABLE_S, _DURABLE_AT_END_S = 300.0, 5.0
"""How long a program waits for its last checkpoint to be durable: when all steps are done, and at SIGTERM."""
_TERMINATED = 128 + signal.SIGTERM


imported()


def batch_size_per_worker(batch_size: int, batch: str = "fixed", workers: int | None = None) -> int:
    """Examples in one worker's batch. `fixed`: `batch_size` is that of all workers together and stays the same when
    their number changes (rounded up). `scaled`: `batch_size` is one worker's, so the total grows with their number.
    `workers` is by default what TF_CONFIG says. Raises ValueError for other words, or sizes below 1."""
    if batch not in ("fixed", "scaled"):
        raise ValueError(f"batch is {batch!r}; it may be 'fixed' or 'scaled'")
    batch_size = whole("batch_size", batch_size)
    if workers is None:
        workers = protocol.Task.of(os.environ.get("TF_CONFIG")).workers
    if batch_size < 1 or workers < 1:
        raise ValueError(f"batch_size ({batch_size}) and workers ({workers}) must be at least 1")
    return math.ceil(batch_size / workers) if batch == "fixed" else batch_size


class ElasticCheckpoint:
    """Reports progress, saves when due or asked, resumes from the newest complete checkpoint.

    `checkpoint`: a tf.train.Checkpoint of all that training changes. `directory`: path or URL for tf.io.gfile; by
    default $ELASTIC_TFJOB_CHECKPOINT_DIR, which the operator sets from the job's annotation; if there is none, nothing
    is saved and the job cannot be rescaled. `total_steps`: when training ends (then the last checkpoint is written).
    Saved every `every_steps` steps or `every_s` seconds, whichever comes first, and with `every_s` also 5 s after
    training has begun; the last `keep` are kept. `batch_size` and `batch`: see batch_size_per_worker. `strategy`:
    needed for MultiWorkerMirroredStrategy, where every worker makes the same calls. `sharded`: parameter servers write
    and read their own parts of a checkpoint, else the chief does all; by default they do where all of them see
    `directory`. `partial`: resume() also from a checkpoint that does not hold all variables of this program; those that
    it lacks keep their initial values. Numbers may be NumPy's or TensorFlow's.

    A save that fails does not end training: it is reported, and tried again when the next one is due. In a directory
    that is a path, a checkpoint is made durable (fsync) beside training, and older ones are deleted after that.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: str | os.PathLike[str] | None = None,
        *,
        total_steps: int | None = None,
        every_steps: int | None = None,
        every_s: float | None = 60.0,
        keep: int = 3,
        batch_size: int | None = None,
        batch: str = "fixed",
        strategy: Any = None,
        sharded: bool | None = None,
        partial: bool = False,
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        keep = whole("keep", keep)
        total_steps = None if total_steps is None else whole("total_steps", total_steps)
        every_steps = None if every_steps is None else whole("every_steps", every_steps)
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must be kept")
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}; it must be at least 1")
        self.task = protocol.Task.of(os.environ.get("TF_CONFIG"))
        self.batch_size = None if batch_size is None else batch_size_per_worker(batch_size, batch, self.task.workers)
        """Examples in one worker's batch, if the constructor was told a `batch_size`."""
        directory = directory or os.environ.get(protocol.CHECKPOINTS) or None
        self._checkpoints = None
        if directory is not None:
            path = os.fspath(directory).rstrip("/") or "/"
            self._checkpoints = Checkpoints(
                checkpoint, path, keep, shared_folder_probe.options(tf, path, sharded), partial=partial
            )
            atexit.register(self._checkpoints.lease.release)
        elif self.task.chief:
            _warn_without_directory()
        self._agreement = StartBarrier(tf, strategy) if needed(tf, strategy) else None
        self._every_steps, self._every_s = every_steps, every_s
        shared, generation = os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)
        self._contact = Hello(shared, generation)
        report_to = Path(shared) if shared and self.task.chief else None
        self.progress = Progress(report_to, int(generation or 0), self._watch)
        self.progress.total_steps = total_steps
        self._request: str | None = None  # the id of the save that the launcher asked for
        self._answered: str | None = None
        self._attention = self._terminated = self._waiting = False
        self._step: int | None = None
        self._saved_step = -1
        self._next_step = self._agree_at = 0
        self._due_at = math.inf
        if self.task.chief:
            end_with_its_threads()
        self._contact.hello()

    @property
    def resumed(self) -> bool:
        """Whether resume() has been called."""
        return self._step is not None

    @property
    def examples_of_a_batch(self) -> int:
        """With parameter servers a batch is one worker's, else all workers' together; 0 without `batch_size`."""
        return (self.batch_size or 0) * (self.task.workers if self._agreement is not None else 1)

    # -- what a program calls ------------------------------------------------------------------------------------------

    def resume(self, warm_up: Callable[[], object] | None = None) -> int:
        """The step to go on from: the newest complete checkpoint's, or 0.

        If this program was prepared beside a running one, this waits until it is to take over. Before that, `warm_up`
        is called, which should do what the first step does (it traces and compiles); the checkpoint that is then
        restored undoes it. Raises RuntimeError if there are checkpoints and none of them can be restored, the newest
        lacks variables of this program (unless `partial`) or has one in another shape, or another job that runs writes
        to the directory; and what TensorFlow raises if the directory cannot be read.
        """
        prepared = self.is_prepared()
        if prepared:
            if warm_up is not None:
                warm_up()
            if self._checkpoints is not None:  # while the one before it still trains, and goes on if this one fails
                self._checkpoints.compare()
        self._barrier()
        found = None
        if self._checkpoints is not None:
            found = self._checkpoints.restore_newest(self._agreement, chief=self.task.chief, after_switch=prepared)
        self._step = int(found["step"]) if found else 0
        self._saved_step = self._step if found else -1
        self.progress.begin(self._step, found)
        self._plan_next(_FIRST_S)
        self._handle_sigterm()
        return self._step

    def step(self, step: int, loss: Any = None, examples: int = 0) -> None:
        """`step` steps are done in all, `examples` examples since the last call. `loss`: a number or an eager tensor.
        To be called between steps, with none in flight (after `coordinator.join()`), at best every 50 ms or more often:
        here checkpoints are saved. `step` and `examples` may be NumPy's or TensorFlow's. Raises RuntimeError before
        resume(), TypeError and ValueError for what is no such number."""
        if self._step is None:
            raise RuntimeError("ElasticCheckpoint.resume() must be called before step()")
        step, examples, loss = whole("step", step), whole("examples", examples), scalar("loss", loss)
        self._step = step
        self.progress.count(step, loss, examples)
        if self._agreement is not None:
            if step >= self._agree_at:
                self._agree(step)
        elif self._attention or step >= self._next_step:
            self._attend(step)

    def callback(self) -> Any:
        """A callback for `Model.fit`, of Keras 3 or of tf-keras. It resumes when training begins and counts batches; a
        resumed `fit` ends when `total_steps` are done. Under a prepared program the first batch is the warm-up.
        Examples are counted if the constructor was told a `batch_size`.

        With parameter servers (tf-keras only) Keras takes no callback for each batch: see runtime/keras_callback.py.
        """
        return callback(self)

    # -- saving --------------------------------------------------------------------------------------------------------

    def _attend(self, step: int) -> None:
        """Something is due, or asked for."""
        terminated = self._terminated
        self._attention = False
        total = self.progress.total_steps
        finished = total is not None and step >= total
        request = None if finished else self._request
        due = step >= self._next_step or time.monotonic() >= self._due_at
        if request is None and not (terminated or finished or due):
            return
        saved = self._save(step)
        if request is not None:
            self._answer(request, step, saved)
        self._settle()
        if request is not None and saved:
            self._wait(request)
        if terminated:
            self._end()
        if finished:
            self._finish()

    def _agree(self, step: int) -> None:
        """The same as _attend in every worker of a MultiWorkerMirroredStrategy: what the chief knows, all do."""
        assert self._agreement is not None
        total = self.progress.total_steps
        finished = total is not None and step >= total
        chief = self.task.chief
        request = self._request if chief else None
        due = chief and (step >= self._next_step or time.monotonic() >= self._due_at)
        rate = self.progress.rate()
        every = min(max(int(rate * _AGREE_S), 1), 1000) if chief else 0
        some_due, some_asked, some_terminated, every = self._agreement.sum(
            int(due), int(request is not None), int(self._terminated), every
        )
        self._agree_at = step + every
        if total is not None and not finished:
            self._agree_at = min(self._agree_at, total)
        if not (some_due or some_asked or some_terminated or finished):
            return
        saved = self._save(step)
        if request is not None and not finished:
            self._answer(request, step, saved)
        self._settle()
        if some_asked and not finished and self._agreement.sum(int(saved and chief))[0]:
            self._wait_together(request)
        if some_terminated:
            self._end()
        if finished:
            self._finish()

    def _save(self, step: int) -> bool:
        """Whether the newest checkpoint is of this step."""
        self._attention = False
        if step == self._saved_step:
            self._plan_next()
            return True
        if self._checkpoints is None:
            self.progress.save_error = "no checkpoint directory"
            self._plan_next()
            return False
        self._tell_what_was_not_restored()
        all_ready = bool if self._agreement is None else self._agreement.all
        try:
            if self.task.chief:
                facts = {"generation": self.progress.generation, "workers": self.task.workers}
                self.progress.checkpoint = self._checkpoints.save(step, all_ready, **facts)
            else:
                self._checkpoints.write_elsewhere(all_ready)
        except Exception as error:  # of the file system, or of a parameter server: the next step will tell
            self.progress.save_error = brief(error)
            print(f"checkpoint at step {step} failed: {self.progress.save_error}", file=sys.stderr, flush=True)
            self._plan_next()
            self.progress.pause()
            return False
        self._saved_step = step
        self.progress.save_error = None
        self._plan_next()
        self.progress.pause()
        return True

    def _settle(self) -> None:
        """Have the new checkpoint made durable and old ones deleted, but not before who waits for it knows of it."""
        if self._checkpoints is not None:
            self._checkpoints.settle()

    def _finish(self) -> None:
        """All steps are done: nothing is kept waiting by this."""
        if self._checkpoints is not None:
            self._checkpoints.wait(_DURABLE_S)
            self._checkpoints.lease.release()
        self._note_durability()
        self.progress.write()

    def _note_durability(self) -> None:
        if self._checkpoints is not None:
            self.progress.durability_error = self._checkpoints.not_durable

    def _tell_what_was_not_restored(self) -> None:
        """At the first save, when all variables have been made."""
        if self._checkpoints is None or not self.task.chief:
            return
        if told := self._checkpoints.not_restored():
            self.progress.not_restored = told
            print(f"WARNING: variables began with initial values: {told}", file=sys.stderr, flush=True)

    def _plan_next(self, within_s: float = math.inf) -> None:
        """When the next checkpoint is due; `within_s`, if there is an interval in seconds at all."""
        assert self._step is not None
        self._next_step = self._step + self._every_steps if self._every_steps else sys.maxsize
        total = self.progress.total_steps
        if total is not None and self._step < total:
            self._next_step = min(self._next_step, total)
        elif total is not None:
            self._next_step = sys.maxsize
        self._due_at = time.monotonic() + min(self._every_s, within_s) if self._every_s else math.inf

    # -- with the launcher ---------------------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        """Whether this program is prepared beside one that runs: then resume() waits."""
        prepared = self._contact.is_closed()
        if self._agreement is not None:
            prepared = bool(self._agreement.sum(int(prepared))[0])
        return prepared

    def _barrier(self) -> None:
        """Wait until this generation is to run. With many workers, only the chief waits for its launcher; the others
        wait for the chief, whose word is there sooner."""
        if self._contact.is_closed():
            self._contact.say_ready()
            while (self._agreement is None or self.task.chief) and self._contact.is_closed():
                time.sleep(_POLL_S)
        if self._agreement is not None:
            self._agreement.sum(0)
            if self._contact.is_closed():  # the chief's launcher has decided: this one's may know
                self._contact.say_begun()
        protocol.restore_stderr()

    def _watch(self) -> None:
        """In the other thread, some times a second: is there something to do at the next step?"""
        if self.task.trains:
            request = self._contact.request()
            self._request = None if request == self._answered else request
            if self._request is not None:
                self._attention = True
        if self._terminated or time.monotonic() >= self._due_at:
            self._attention = True
        self._note_durability()

    def _answer(self, request: str, step: int, saved: bool) -> None:
        """The launcher learns that all is saved (and training stands still), or why it is not."""
        self._answered, self._request = request, None
        if saved:
            self.progress.close()
        self._contact.answer(request, step, ok=saved, why=self.progress.save_error)

    def _wait(self, request: str) -> None:
        """Until killed, or told to go on."""
        self._waiting = True
        while self._contact.request() == request:
            if self._terminated:
                self._end()
            time.sleep(_POLL_S)
        self._waiting = False
        self.progress.reopen()
        self.progress.pause()

    def _wait_together(self, request: str | None) -> None:
        assert self._agreement is not None
        default = None
        if request is None and threading.current_thread() is threading.main_thread():
            default = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no handler runs while this waits for the chief
        if request is not None:
            self._wait(request)
        try:
            self._agreement.sum(0)  # the chief comes here only when it goes on
        except Exception:
            time.sleep(_KILLED_S)  # the chief has gone, most likely as it should: then so does this
            raise
        if default is not None:
            signal.signal(signal.SIGTERM, default)
        self.progress.pause()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _handle_sigterm(self) -> None:
        """Save at the next step when the replica is ended, unless the program has a handler of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
            return

        def terminate(*_: object) -> None:
            if self._waiting:
                self._end()
            self._terminated = self._attention = True

        signal.signal(signal.SIGTERM, terminate)

    def _end(self) -> None:
        """End at once, as a program does that SIGTERM has ended: TensorFlow's threads may be waiting for replicas that
        are gone by now."""
        if not self._waiting:
            if self._checkpoints is not None:
                self._checkpoints.wait(_DURABLE_AT_END_S)
                self._checkpoints.lease.release()
            self.progress.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_TERMINATED)


@functools.cache  # once in a process
def _warn_without_directory() -> None:
    print(
        "WARNING: ElasticCheckpoint has no directory: nothing is saved, a restart begins at step 0, and the job is not "
        "rescaled. Give it one, ElasticCheckpoint(checkpoint, '/checkpoints/mine'), or set the job's annotation "
        "elastic.kubeflow.org/checkpoint-dir",
        file=sys.stderr,
        flush=True,
    )
