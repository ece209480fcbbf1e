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

import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import preload, protocol, words
from elastic_tfjob.runtime.checkpoints import Checkpoints, Mismatch
from elastic_tfjob.runtime.progress import Progress
from elastic_tfjob.runtime.scalars import scalar, whole

_POLL_S = 0.005
_FIRST_S = 5.0
"""The first checkpoint of a program comes so soon, whatever the interval: it shows whether saving works at all, and
makes parameter servers connect to the chief. At SIGTERM they could not: a pod that is ended has no name any more."""
_AGREE_S = 0.25
"""How often the workers of a MultiWorkerMirroredStrategy ask each other whether one of them was told to save."""
_KILLED_S = 60.0
_TERMINATED = 128 + signal.SIGTERM


def _imported() -> None:
    """Tell the launcher that this program has the hook, though it may take long until it uses it."""
    shared, generation = os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)
    if shared and generation:
        with contextlib.suppress(OSError, ValueError):
            protocol.write(protocol.generation_directory(Path(shared), int(generation)) / protocol.IMPORTED, {})


_imported()


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
    their own part of a checkpoint, which is faster for large models but needs `directory` in their containers too;
    otherwise the chief writes all. `partial`: resume() also from a checkpoint that does not hold all variables of this
    program; those that it lacks keep their initial values. Numbers may be NumPy's or TensorFlow's.

    A save that fails does not end training: it is reported, and tried again when the next one is due.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: str | None = None,
        *,
        total_steps: int | None = None,
        every_steps: int | None = None,
        every_s: float | None = 60.0,
        keep: int = 3,
        batch_size: int | None = None,
        batch: str = "fixed",
        strategy: Any = None,
        sharded: bool = False,
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
        self._task = protocol.Task.of(os.environ.get("TF_CONFIG"))
        self.batch_size = None if batch_size is None else batch_size_per_worker(batch_size, batch, self._task.workers)
        """Examples in one worker's batch, if the constructor was told a `batch_size`."""
        directory = directory or os.environ.get(protocol.CHECKPOINTS) or None
        self._checkpoints = None
        if directory is not None:
            options = tf.train.CheckpointOptions(experimental_io_device=None if sharded else _chief_device(tf))
            self._checkpoints = Checkpoints(checkpoint, directory.rstrip("/"), keep, options, partial=partial)
        self._agreement = _Agreement(tf, strategy) if _many(tf, strategy) else None
        self._every_steps, self._every_s = every_steps, every_s
        shared, generation = os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)
        self._folder: Path | None = None
        if shared and generation:
            self._folder = protocol.generation_directory(Path(shared), int(generation))
        report_to = Path(shared) if shared and self._task.chief else None
        self._progress = Progress(report_to, int(generation or 0), self._watch)
        self._progress.total_steps = total_steps
        self._request: str | None = None  # the id of the save that the launcher asked for
        self._answered: str | None = None
        self._attention = self._terminated = self._waiting = False
        self._step: int | None = None
        self._saved_step = -1
        self._next_step = self._agree_at = 0
        self._agree_every = 1
        self._due_at = math.inf
        self._hello()

    # -- what a program calls ------------------------------------------------------------------------------------------

    def resume(self, warm_up: Callable[[], object] | None = None) -> int:
        """The step to go on from: the newest complete checkpoint's, or 0.

        If this program was prepared beside a running one, this waits until it is to take over. Before that, `warm_up`
        is called, which should do what the first step does (it traces and compiles); the checkpoint that is then
        restored undoes it. Raises RuntimeError if there are checkpoints and none of them can be restored, or the newest
        lacks variables of this program (unless `partial`), and what TensorFlow raises if the directory cannot be read.
        """
        if self._is_prepared():
            if warm_up is not None:
                warm_up()
            if self._checkpoints is not None:  # while the one before it still trains, and goes on if this one fails
                self._checkpoints.compare()
        self._barrier()
        found = self._restore()
        self._step = self._saved_step = int(found["step"]) if found else 0
        if found is None:
            self._saved_step = -1
        self._progress.begin(self._step, found)
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
        self._progress.count(step, loss, examples)
        if self._agreement is not None:
            if step >= self._agree_at:
                self._agree(step)
        elif self._attention or step >= self._next_step:
            self._attend(step)

    def callback(self) -> Any:
        """A callback for `Model.fit`, of Keras 3 or of tf-keras. It resumes when training begins and counts batches; a
        resumed `fit` ends when `total_steps` are done. Under a prepared program the first batch is the warm-up.
        Examples are counted if the constructor was told a `batch_size`.

        With parameter servers (tf-keras only) Keras hands batches out ahead of the workers and takes no callback for
        each. There it counts, reports and saves at the end of an epoch (`steps_per_epoch` steps), and has no warm-up.
        """
        import tensorflow as tf  # noqa: PLC0415

        elastic = self
        by_epochs = _chief_device(tf) is not None
        # A program may have tf-keras by its own name. Its callbacks will do for Keras 3, but not the other way round.
        keras: Any = sys.modules.get("tf_keras") or tf.keras

        class ElasticCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self._done = 0
                self._batch = -1
                # With parameter servers a batch is one worker's, else all workers' together.
                together = elastic._task.workers if elastic._agreement is not None else 1
                self._examples = (elastic.batch_size or 0) * together

            def on_train_begin(self, logs: Any = None) -> None:
                optimizer = getattr(self.model, "optimizer", None)
                if optimizer is not None and self.model.built and hasattr(optimizer, "build"):
                    with contextlib.suppress(Exception):  # else its variables are restored when they are made
                        optimizer.build(self.model.trainable_variables)
                if by_epochs or not elastic._is_prepared():
                    self._begin()

            def _count(self, done: int, logs: Any) -> None:
                if not self.model.stop_training:  # else all was done before, and Keras only sees it afterwards
                    self._done += done
                    elastic.step(self._done, loss=_loss(logs), examples=done * self._examples)
                    self._end_if_done()

            def _begin(self) -> None:
                self._done = elastic.resume()
                self._end_if_done()

            def _end_if_done(self) -> None:
                total = elastic._progress.total_steps
                if total is not None and self._done >= total:
                    self.model.stop_training = True

        class ByBatches(ElasticCheckpointCallback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self._batch = -1

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                done, self._batch = batch - self._batch, batch
                if elastic._step is None:  # that was the warm-up
                    self._begin()
                else:
                    self._count(done, logs)

        class ByEpochs(ElasticCheckpointCallback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self._count(self.params["steps"], logs)

        return ByEpochs() if by_epochs else ByBatches()

    # -- saving --------------------------------------------------------------------------------------------------------

    def _attend(self, step: int) -> None:
        """Something is due, or asked for."""
        request, terminated = self._request, self._terminated
        self._attention = False
        total = self._progress.total_steps
        finished = total is not None and step >= total
        due = step >= self._next_step or time.monotonic() >= self._due_at
        if request is None and not (terminated or finished or due):
            return
        saved = self._save(step)
        if request is not None and not finished:
            self._answer(request, step, saved)
            if saved:
                self._wait(request)
        if terminated:
            self._end()
        if finished:
            self._progress.write()

    def _agree(self, step: int) -> None:
        """The same as _attend in every worker of a MultiWorkerMirroredStrategy: what the chief knows, all do."""
        assert self._agreement is not None
        total = self._progress.total_steps
        finished = total is not None and step >= total
        chief = self._task.chief
        request = self._request if chief else None
        due = chief and (step >= self._next_step or time.monotonic() >= self._due_at)
        rate = self._progress.rate()
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
        if some_asked and not finished:
            if request is not None:
                self._answer(request, step, saved)
            if self._agreement.sum(int(saved and chief))[0]:
                self._wait_together(request)
        if some_terminated:
            self._end()
        if finished:
            self._progress.write()

    def _save(self, step: int) -> bool:
        """Whether the newest checkpoint is of this step."""
        self._attention = False
        if step == self._saved_step:
            self._plan_next()
            return True
        if self._checkpoints is None:
            self._progress.save_error = "no checkpoint directory"
            self._plan_next()
            return False
        try:
            if self._task.chief:
                facts = {"generation": self._progress.generation, "workers": self._task.workers}
                self._progress.checkpoint = self._checkpoints.save(step, **facts)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    self._checkpoints.write_elsewhere(folder)
        except Exception as error:  # of the file system, or of a parameter server: the next step will tell
            self._progress.save_error = brief(error)
            print(f"checkpoint at step {step} failed: {self._progress.save_error}", file=sys.stderr, flush=True)
            self._plan_next()
            self._progress.pause()
            return False
        self._saved_step = step
        self._progress.save_error = None
        self._plan_next()
        self._progress.pause()
        return True

    def _plan_next(self, within_s: float = math.inf) -> None:
        """When the next checkpoint is due; `within_s`, if there is an interval in seconds at all."""
        assert self._step is not None
        self._next_step = self._step + self._every_steps if self._every_steps else sys.maxsize
        total = self._progress.total_steps
        if total is not None and self._step < total:
            self._next_step = min(self._next_step, total)
        elif total is not None:
            self._next_step = sys.maxsize
        self._due_at = time.monotonic() + min(self._every_s, within_s) if self._every_s else math.inf

    def _restore(self) -> dict[str, Any] | None:
        if self._checkpoints is None:
            return None
        found = self._checkpoints.complete()
        if self._agreement is not None:
            newest = self._agreement.sum(found[0]["step"] + 1 if found and self._task.chief else 0)[0] - 1
            found = [each for each in found if each["step"] == newest]
            if newest >= 0 and not found:
                where = self._checkpoints.directory
                raise RuntimeError(f"checkpoint of step {newest} is not in {where} here; do all workers share it?")
        problem: Exception | None = None
        for each in found:
            try:
                self._checkpoints.restore(each["path"])
                return each
            except Mismatch:  # an older one would hide it
                raise
            except Exception as error:
                problem = error
                print(f"cannot restore {each['path']}: {error}", file=sys.stderr, flush=True)
                if self._agreement is not None:
                    raise
        if problem is not None:
            raise RuntimeError(f"no checkpoint in {self._checkpoints.directory} can be restored") from problem
        return None

    # -- with the launcher ---------------------------------------------------------------------------------------------

    def _hello(self) -> None:
        """Tell the launcher that this program can be rescaled, and what it set before it imported TensorFlow."""
        if self._folder is None:
            return
        hello = {"pid": os.getpid(), "environment": preload.read_early(os.environ)}
        preload.tell()
        with contextlib.suppress(OSError):
            protocol.write(self._folder.parent / protocol.HELLO, hello)
            protocol.write(self._folder / protocol.HELLO, hello)

    def _is_closed(self) -> bool:
        """Whether the launcher holds this program back: its generation is prepared beside the one that runs."""
        return (
            self._folder is not None and not os.environ.get(protocol.OPEN) and not (self._folder / protocol.GO).exists()
        )

    def _is_prepared(self) -> bool:
        prepared = self._is_closed()
        if self._agreement is not None:
            prepared = bool(self._agreement.sum(int(prepared))[0])
        return prepared

    def _barrier(self) -> None:
        """Wait until this generation is to run. With many workers, only the chief waits for its launcher; the others
        wait for the chief, whose word is there sooner."""
        if self._folder is not None and self._is_closed():
            protocol.write(self._folder / protocol.READY, {"pid": os.getpid()})
            while (self._agreement is None or self._task.chief) and self._is_closed():
                time.sleep(_POLL_S)
        if self._agreement is not None:
            self._agreement.sum(0)
            if self._folder is not None and self._is_closed():  # the chief's launcher has decided: this one's may know
                with contextlib.suppress(OSError):
                    protocol.write(self._folder / protocol.BEGUN, {"pid": os.getpid(), "at": time.time()})
        words.restore()

    def _watch(self) -> None:
        """In the other thread, some times a second: is there something to do at the next step?"""
        if self._folder is not None and self._task.trains:
            request = None
            if (self._folder / protocol.SAVE).exists():
                request = (protocol.read(self._folder / protocol.SAVE) or {}).get("id")
            self._request = None if request == self._answered else request
            if self._request is not None:
                self._attention = True
        if time.monotonic() >= self._due_at:
            self._attention = True

    def _answer(self, request: str, step: int, saved: bool) -> None:
        """The launcher learns that all is saved (and training stands still), or why it is not."""
        assert self._folder is not None
        self._answered, self._request = request, None
        if saved:
            self._progress.close()
        answer = {"id": request, "ok": saved, "why": self._progress.save_error, "step": step, "at": time.time()}
        try:
            protocol.write(self._folder / protocol.SAVED, answer)
        except OSError as error:  # no answer: the launcher will give up after its time-out
            print(f"cannot answer the launcher: {error}", file=sys.stderr, flush=True)

    def _asked_still(self, request: str) -> bool:
        assert self._folder is not None
        return (protocol.read(self._folder / protocol.SAVE) or {}).get("id") == request

    def _wait(self, request: str) -> None:
        """Until killed, or told to go on."""
        self._waiting = True
        while self._asked_still(request):
            if self._terminated:
                self._end()
            time.sleep(_POLL_S)
        self._waiting = False
        self._progress.reopen()
        self._progress.pause()

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
        self._progress.pause()

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
            self._progress.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_TERMINATED)


class _Agreement:
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

    def sum(self, *values: int) -> list[int]:
        """The sum of each value. Raises what TensorFlow raises when a worker is gone."""
        results = self._strategy.experimental_local_results(self._total(self._tf.constant(values, self._tf.int64)))
        # Every replica of a worker brings the worker's value, so a chief's own value comes back once per replica.
        return [int(value) // len(results) for value in results[0].numpy()]


def brief(error: Exception) -> str:
    """What went wrong in one line: without the places in the program that TensorFlow lists before it says that."""
    lines = [line.strip() for line in str(error).splitlines()]
    places = ("Graph execution error", "Detected at node", "File ", "[[", "Hint: ")
    told = " ".join(line for line in lines if line and not line.startswith(places))
    return f"{type(error).__name__}: {told[:300]}"


def _loss(logs: Any) -> Any:
    """What Keras says of the loss, if that is a number."""
    try:
        return scalar("loss", (logs or {}).get("loss"))
    except TypeError:
        return None


def _many(tf: Any, strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > len(
        strategy.extended.worker_devices
    )


def _chief_device(tf: Any) -> str | None:
    """Where a coordinator runs, if variables live in other processes."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    remote = any("/job:ps/" in name for name in names)
    return next((name for name in names if remote and "/job:chief/" in name), None)
