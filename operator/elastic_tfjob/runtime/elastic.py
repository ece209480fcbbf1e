"""`ElasticCheckpoint`: reports progress, saves checkpoints, and lets a job change its size.

    elastic = ElasticCheckpoint(tf.train.Checkpoint(model=model, optimizer=optimizer), total_steps=2000)
    step = elastic.resume(warm_up=one_step)
    while step < 2000:
        loss = one_step()
        step += 1
        elastic.step(step, loss=loss, examples=32)

With Keras: `model.fit(data, callbacks=[elastic.callback()])`. Without launcher and operator it is a plain checkpoint:
saved at intervals and on SIGTERM, restored at the next start.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from elastic_tfjob.runtime import protocol, shared_folder_probe
from elastic_tfjob.runtime.checkpoints import Checkpoints
from elastic_tfjob.runtime.coordinator_threads import end_with_coordinator_threads
from elastic_tfjob.runtime.hand_over import HandOver
from elastic_tfjob.runtime.hello import Hello, report_import
from elastic_tfjob.runtime.keras_callback import callback
from elastic_tfjob.runtime.live_changes import LiveChanges
from elastic_tfjob.runtime.live_workers import LiveWorkers
from elastic_tfjob.runtime.progress import Progress, scalar, whole
from elastic_tfjob.runtime.protocol import brief
from elastic_tfjob.runtime.start_barrier import StartBarrier, needs_barrier
from elastic_tfjob.runtime.worker_datasets import without_autotuning

if TYPE_CHECKING:  # data.py imports NumPy, which replicas that only serve do not need
    from elastic_tfjob.runtime.data import Data

_POLL_S = 0.005
_LOOK_S = 5.0
"""How often a prepared program looks for newer checkpoints, to report that it sees them."""
_FIRST_CHECKPOINT_S = 5.0
"""The first checkpoint is due this soon after training begins, whatever the interval. It shows whether saving works,
and makes parameter servers connect to the chief. At SIGTERM they could not: a pod that is ending has no name."""
_AGREEMENT_S = 0.25
"""How often the workers of a MultiWorkerMirroredStrategy ask each other whether one of them must save."""
_CHIEF_GONE_S = 60.0
_DURABLE_S, _DURABLE_AT_END_S = 300.0, 5.0
"""A program waits at most this long until its last checkpoint is durable: after its last step, and at SIGTERM."""
_TERMINATED = 128 + signal.SIGTERM


report_import()


def batch_size_per_worker(batch_size: int, batch: str = "fixed", workers: int | None = None) -> int:
    """The number of examples in one worker's batch.

    `batch_size`: examples, an integer of at least 1. `batch`: `fixed` if `batch_size` is the total of all workers,
    which stays the same when their number changes (the result is rounded up); `scaled` if it is one worker's, so that
    the total grows with their number. `workers`: their number, by default from TF_CONFIG. Raises ValueError for another
    `batch` or a number below 1, and TypeError if `batch_size` is not a whole number.
    """
    if batch not in ("fixed", "scaled"):
        raise ValueError(f"batch is {batch!r}; it must be 'fixed' or 'scaled'")
    batch_size = whole("batch_size", batch_size)
    if workers is None:
        workers = protocol.Task.of(os.environ.get("TF_CONFIG")).workers
    if batch_size < 1 or workers < 1:
        raise ValueError(f"batch_size ({batch_size}) and workers ({workers}) must be at least 1")
    return math.ceil(batch_size / workers) if batch == "fixed" else batch_size


class ElasticCheckpoint:
    """Reports progress, saves when a checkpoint is due or requested, and resumes from the newest complete checkpoint.

    `checkpoint`: a tf.train.Checkpoint of everything that training changes.
    `directory`: a path, or a URL for tf.io.gfile. By default $ELASTIC_TFJOB_CHECKPOINT_DIR, which the operator sets
    from the job's annotation; without either, nothing is saved and the job cannot be rescaled.
    `total_steps`: the number of steps after which training ends; the last checkpoint is written then.
    `every_steps`, `every_s`: a checkpoint is due after this many steps or seconds, whichever comes first; with
    `every_s` the first one is due 5 s after training begins. None switches one of them off.
    `keep`: the number of checkpoints to keep, at least 1.
    `batch_size`, `batch`: see batch_size_per_worker.
    `live`: False if workers must not join and leave while this program runs (a new one is started then, as for other
    changes). `on_workers`: called in `step()` with the number of workers after they have. Where the batch is fixed,
    they do so only if there is an `on_workers`: it makes the dataset anew, with the new `batch_size`.
    `strategy`: needed for MultiWorkerMirroredStrategy, where every worker must make the same calls.
    `sharded`: True if parameter servers write and read their own parts of a checkpoint, False if the chief does all; by
    default True where all of them see `directory`.
    `partial`: True to resume from a checkpoint that lacks some of the program's variables; these keep their initial
    values. Numbers may be NumPy's or TensorFlow's.

    Raises TypeError for a number of another type, ValueError for one out of range or a directory with one of `*?[\\`.

    A failed save does not end training: it is reported, and tried again when the next one is due. In a directory that
    is a path, a checkpoint is made durable (fsync) beside training, and older ones are deleted after that.
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
        live: bool = True,
        on_workers: Callable[[int], object] | None = None,
        strategy: Any = None,
        sharded: bool | None = None,
        partial: bool = False,
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        keep = whole("keep", keep)
        total_steps = None if total_steps is None else whole("total_steps", total_steps)
        every_steps = None if every_steps is None else whole("every_steps", every_steps)
        if keep < 1:
            raise ValueError(f"keep is {keep}; it must be at least 1")
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps is {every_steps}; it must be at least 1")
        tf_config = os.environ.get("TF_CONFIG")
        self.task = protocol.Task.of(tf_config)
        self._batch, self._on_workers, self._may_live = (batch_size, batch), on_workers, live
        self.batch_size = None if batch_size is None else batch_size_per_worker(batch_size, batch, self.task.workers)
        """Examples in one worker's batch; None without `batch_size`."""
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
        self.strategy = strategy
        self._start_barrier = StartBarrier(tf, strategy) if needs_barrier(tf, strategy) else None
        self._every_steps, self._every_s = every_steps, every_s
        shared, generation = os.environ.get(protocol.DIRECTORY), os.environ.get(protocol.GENERATION)
        self._hello = Hello(shared, generation)
        report_to = Path(shared) if shared and self.task.chief else None
        self.progress = Progress(report_to, int(generation or 0), self._watch)
        self.progress.total_steps = total_steps
        self._live: LiveChanges | None = None
        if self._hello.folder is not None and self.task.chief and protocol.chief_and_workers(tf_config)[0]:
            if on_workers is not None:
                without_autotuning()
            changed = self._workers_changed
            self._live = LiveChanges(LiveWorkers(tf), self._hello.folder, self.progress, self._why_not_live, changed)
        self._hand_over = HandOver(tf, self._checkpoints, self._hello, tf_config)
        self._save_request: dict[str, Any] | None = None  # the save that the launcher asks for
        self._answered_request: dict[str, Any] | None = None
        self._has_work = self._terminated = self._waiting = self._ends_with_data = False
        self.training_data: Data | None = None  # the result of `data()`
        self._step: int | None = None
        self._saved_step = -1
        self._next_step = self._next_agreement_step = 0
        self._due_at_s = math.inf
        if self.task.chief:
            end_with_coordinator_threads()
        self._hello.report_start()

    @property
    def resumed(self) -> bool:
        """Whether resume() has been called."""
        return self._step is not None

    @property
    def workers(self) -> int:
        """The number of replicas that compute gradients now."""
        return self.task.workers

    @property
    def examples_of_a_batch(self) -> int:
        """Examples in a batch: one worker's with parameter servers, else the total of all workers; 0 without
        `batch_size`."""
        return (self.batch_size or 0) * self.parts_of_a_batch

    @property
    def parts_of_a_batch(self) -> int:
        """The number of workers that share a batch: 1 with parameter servers, where a batch is one worker's."""
        return self.task.workers if self._start_barrier is not None else 1

    @property
    def has_parameter_servers(self) -> bool:
        """Whether workers compute what this program schedules."""
        return bool(protocol.parameter_servers(os.environ.get("TF_CONFIG")))

    def _why_not_live(self) -> str:
        """Why workers must not join and leave, as a clause; empty if they may."""
        if not self._may_live:
            return "the program has set live=False"
        takes = self.training_data is not None and self.training_data.takes  # by the batch size that holds then
        if self.batch_size is None or self._batch[1] != "fixed" or takes or self._on_workers is not None:
            return ""
        return "the batch is fixed, and the program has no on_workers"

    # -- what a program calls ------------------------------------------------------------------------------------------

    def resume(self, warm_up: Callable[[], object] | None = None) -> int:
        """Restore the newest complete checkpoint; returns its step, or 0 if there is none.

        In a program that was prepared beside a running one, this waits until it takes over. Before that, `warm_up` is
        called once. It should do what the first step does (which traces and compiles); the restored checkpoint undoes
        it. Raises RuntimeError if there are checkpoints and none can be restored, if the newest lacks variables of this
        program (unless `partial`) or has one in another shape, or if another running job writes to the directory.
        Raises what TensorFlow raises if the directory cannot be read.
        """
        prepared, newest = self.is_prepared(), None
        if prepared:
            if warm_up is not None:
                warm_up()
            if self._checkpoints is not None:  # the running program trains on if this fails
                newest = self._checkpoints.compare(self.training_data)
            self._hand_over.prepare()
        self._barrier(newest)
        found, before = None, self._hello.old_chief()
        given = self._hand_over.take()
        if given is None and self._checkpoints is not None:
            if isinstance(before.get("checkpoint"), int):
                self._checkpoints.wait_for(before["checkpoint"])
            found = self._checkpoints.restore_newest(self._start_barrier, chief=self.task.chief, after_switch=prepared)
        begun = given or found or {}
        self._step = int(begun.get("step", 0))
        if self.training_data is not None:
            self.training_data.restore(begun)
            self._expect(self.training_data.steps_left())
        self._saved_step = self._step if found else -1
        self.progress.begin(self._step, given["checkpoint"] if given else found, before)
        self._plan_next(_FIRST_CHECKPOINT_S)
        if given is not None:  # the program before saves this step, or `_watch` learns that it cannot
            self._next_step, self._due_at_s = self.progress.total_steps or sys.maxsize, math.inf
            self.progress.begin_hand_over()
        self._handle_sigterm()
        return self._step

    def step(self, step: int, loss: Any = None, examples: int = 0) -> None:
        """Report progress; saves a checkpoint if one is due or requested.

        `step`: the number of steps done in all. `loss`: a number or an eager tensor with one value. `examples`: the
        number of examples since the last call. To be called between steps, with none in flight (after
        `coordinator.join()`), at least every 50 ms if possible. Numbers may be NumPy's or TensorFlow's. Raises
        RuntimeError before resume(), TypeError for a value of another type, and ValueError for a negative number.
        """
        if self._step is None:
            raise RuntimeError("ElasticCheckpoint.resume() must be called before step()")
        step, examples, loss = whole("step", step), whole("examples", examples), scalar("loss", loss)
        done, self._step = step - self._step, step
        if self.training_data is not None:
            self._expect(self.training_data.count(done))
        self.progress.count(step, loss, examples)
        if self._start_barrier is not None:
            if step >= self._next_agreement_step:
                self._work_together(step)
        elif self._has_work or step >= self._next_step:
            self._work(step)

    def data(
        self,
        examples: int,
        *,
        epochs: int | None = 1,
        seed: int = 0,
        order: str = "shuffled",
        block: int = 1024,
        mix: int = 8,
    ) -> Data:
        """Have training read each example once in an epoch, whatever happens to the job; see `Data`. To be called once,
        before resume().

        `examples`: their number. `epochs`: how often they are read; None for training without end. Without
        `total_steps`, training ends when no example is left. `seed`: chooses their order, which differs between epochs.
        `order`: "shuffled"; "sequential"; "blocks" for files that are read in one piece: blocks of `block` examples are
        shuffled, and examples within `mix` blocks. Raises RuntimeError after resume() or at a second call, TypeError
        and ValueError for values that are not valid.
        """
        from elastic_tfjob.runtime.data import Data, Order  # noqa: PLC0415

        if self.resumed or self.training_data is not None:
            raise RuntimeError("ElasticCheckpoint.data() must be called once, before resume()")
        self.training_data = Data(self, Order(examples, seed, order, block, mix), epochs)
        self._ends_with_data = self.progress.total_steps is None and epochs is not None
        return self.training_data

    def callback(self) -> Any:
        """A callback for `Model.fit` of Keras 3 or tf-keras. It resumes when training begins and counts batches; a
        resumed `fit` ends after `total_steps`. In a prepared program the first batch is the warm-up. Examples are
        counted if the constructor got a `batch_size`.

        With parameter servers (tf-keras only) Keras calls no callback for each batch: see runtime/keras_callback.py.
        """
        return callback(self)

    def _expect(self, steps: int | None) -> None:
        """The data are enough for so many more steps; None if that is not known."""
        if self._ends_with_data and steps is not None:
            total = self.progress.total_steps = (self._step or 0) + steps
            if not steps:
                self._has_work, self._next_agreement_step = True, total

    def _position(self) -> dict[str, Any]:
        """The part of a checkpoint's marker that says how far training is in its data."""
        return {} if self.training_data is None else {"data": self.training_data.state()}

    # -- saving --------------------------------------------------------------------------------------------------------

    def _work(self, step: int) -> None:
        """Save if a checkpoint is due or requested, and do what follows from it."""
        terminated = self._terminated
        self._has_work = False
        if self._live is not None:
            self._live.at_step()
        total = self.progress.total_steps
        finished = total is not None and step >= total
        request = None if finished else self._save_request
        due = step >= self._next_step or time.monotonic() >= self._due_at_s
        if request is None and not (terminated or finished or due):
            return
        if request is not None and (given := self._hand_over.give(request, step, self.progress.checkpoint)):
            self._answer(request, step, saved=True, given={**given, **self._position()})
            self._stand_still(request, given=True)
            return
        saved = self._save(step)
        if request is not None:
            self._answer(request, step, saved=saved)
        self._settle()
        if request is not None and saved:
            self._stand_still(request)
        if terminated:
            self._end()
        if finished:
            self._finish()

    def _work_together(self, step: int) -> None:
        """`_work` for a MultiWorkerMirroredStrategy: every worker does what the chief decides."""
        assert self._start_barrier is not None
        total = self.progress.total_steps
        finished = total is not None and step >= total
        chief = self.task.chief
        request = self._save_request if chief else None
        due = chief and (step >= self._next_step or time.monotonic() >= self._due_at_s)
        rate = self.progress.rate()
        every = min(max(int(rate * _AGREEMENT_S), 1), 1000) if chief else 0
        some_due, some_asked, some_terminated, every = self._start_barrier.sum(
            int(due), int(request is not None), int(self._terminated), every
        )
        self._next_agreement_step = step + every
        if total is not None and not finished:
            self._next_agreement_step = min(self._next_agreement_step, total)
        if not (some_due or some_asked or some_terminated or finished):
            return
        saved = self._save(step)
        if request is not None and not finished:
            self._answer(request, step, saved=saved)
        self._settle()
        if some_asked and not finished and self._start_barrier.sum(int(saved and chief))[0]:
            self._stand_still_together(request)
        if some_terminated:
            self._end()
        if finished:
            self._finish()

    def _save(self, step: int) -> bool:
        """Save; returns whether the newest checkpoint is of this step."""
        self._has_work = False
        if step == self._saved_step:
            self._plan_next()
            return True
        if self._checkpoints is None:
            self.progress.save_error = "no checkpoint directory"
            self._plan_next()
            return False
        self._report_not_restored()
        all_ready = bool if self._start_barrier is None else self._start_barrier.all
        try:
            if self.task.chief:
                facts = {"generation": self.progress.generation, "workers": self.task.workers, **self._position()}
                self.progress.checkpoint = self._checkpoints.save(step, all_ready, **facts)
            else:
                self._checkpoints.write_elsewhere(all_ready)
        except Exception as error:  # of the file system or a parameter server; the next step fails if that is lost
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
        """Have the new checkpoint made durable and old ones deleted. Called after the launcher has its answer."""
        if self._checkpoints is not None:
            self._checkpoints.settle()

    def _finish(self) -> None:
        """After the last step: wait until the last checkpoint is durable."""
        if self._checkpoints is not None:
            self._checkpoints.wait(_DURABLE_S)
            self._checkpoints.lease.release()
        self._note_durability()
        self.progress.write()

    def _note_durability(self) -> None:
        if self._checkpoints is not None:
            self.progress.durability_error = self._checkpoints.not_durable

    def _report_not_restored(self) -> None:
        """At the first save all variables exist: report those that the checkpoint did not have."""
        if self._checkpoints is None or not self.task.chief:
            return
        if missing := self._checkpoints.not_restored():
            self.progress.not_restored = missing
            print(f"WARNING: variables keep their initial values: {missing}", file=sys.stderr, flush=True)

    def _plan_next(self, within_s: float = math.inf) -> None:
        """Set when the next checkpoint is due: after `within_s` at the latest, if there is an interval in seconds."""
        assert self._step is not None
        self._next_step = self._step + self._every_steps if self._every_steps else sys.maxsize
        total = self.progress.total_steps
        if total is not None and self._step < total:
            self._next_step = min(self._next_step, total)
        elif total is not None:
            self._next_step = sys.maxsize
        self._due_at_s = time.monotonic() + min(self._every_s, within_s) if self._every_s else math.inf

    # -- with the launcher ---------------------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        """Whether this program is prepared beside a running one, so that resume() waits."""
        prepared = self._hello.must_wait()
        if self._start_barrier is not None:
            prepared = bool(self._start_barrier.sum(int(prepared))[0])
        return prepared

    def _barrier(self, newest: int | None) -> None:
        """Wait until this generation runs. With several workers only the chief waits for its launcher; the others wait
        for the chief, which knows first. `newest`: the step of the newest checkpoint."""
        if self._hello.must_wait():
            self._hello.report_ready(self._hand_over.readiness, newest)
            looked_s = time.monotonic()
            while (self._start_barrier is None or self.task.chief) and self._hello.must_wait():
                time.sleep(_POLL_S)
                if self._checkpoints is not None and time.monotonic() - looked_s >= _LOOK_S:
                    looked_s = time.monotonic()
                    self._hello.report_ready(self._hand_over.readiness, self._checkpoints.newest_step())
        if self._start_barrier is not None:
            self._start_barrier.sum(0)
            if self._hello.must_wait():  # the chief's launcher has decided; this worker's launcher learns it here
                self._hello.report_begun()
        protocol.restore_stderr()

    def _watch(self) -> None:
        """In the reporting thread, four times a second: note whether the next step has something to do."""
        if self.task.trains:
            request = self._hello.save_request()
            self._save_request = None if request == self._answered_request else request
            if (self._live is not None and self._live.watch()) or self._save_request is not None:
                self._has_work = True
            if (kept := self._hand_over.watch()) is not None:
                self._begun_with(kept)
        if self._hello.save_soon():
            self._due_at_s = 0.0
        if self._terminated or time.monotonic() >= self._due_at_s:
            self._has_work = True
        self._note_durability()

    def _workers_changed(self, count: int) -> None:
        """The workers have changed while this program runs."""
        self.task = replace(self.task, workers=count)
        batch_size, batch = self._batch
        if batch_size is not None:
            self.batch_size = batch_size_per_worker(batch_size, batch, count)
        try:
            if self._on_workers is not None:
                self._on_workers(count)
        except Exception as error:  # the workers have changed already
            traceback.print_exc()
            if self._live is not None:
                self._live.refuse(f"on_workers failed: {brief(error)}")
            print("WARNING: on_workers failed; training continues without it", file=sys.stderr, flush=True)

    def _begun_with(self, kept: dict[str, Any]) -> None:
        """In the reporting thread: the checkpoint of the values that this program began with is durable, or it saves
        one itself now."""
        self.progress.end_hand_over(durable=bool(kept.get("ok")))
        self._plan_next()
        if kept.get("ok"):
            newest = (self.progress.checkpoint or {}).get("step", -1)
            if kept["checkpoint"]["step"] > newest:  # else this program has saved meanwhile
                self.progress.checkpoint = kept["checkpoint"]
        else:
            print(f"WARNING: the values of the switch were not saved: {kept.get('why')}", file=sys.stderr, flush=True)
            self._due_at_s = 0.0

    def _answer(self, request: dict[str, Any], step: int, *, saved: bool, given: dict[str, Any] | None = None) -> None:
        """Tell the launcher that the checkpoint is written, or the values are given, and training stands still; or why
        it is not written."""
        self._answered_request, self._save_request = request, None
        if saved:
            self.progress.close()
        self._hello.answer_save(request, step, ok=saved, why=None if saved else self.progress.save_error, given=given)

    def _stand_still(self, request: dict[str, Any], *, given: bool = False) -> None:
        """Wait until this process is killed, or the launcher withdraws its request. If its values were `given`, save
        them when the next program has them."""
        unsaved, self._waiting = given, not given
        while self._hello.save_request() == request:
            if unsaved and (self._terminated or self._hand_over.is_taken(request)):
                unsaved = False
                self._save_given()
            if self._terminated:
                self._end()
            time.sleep(_POLL_S)
        self._waiting = False
        if given:
            self._hand_over.take_back()
        self.progress.reopen()
        self.progress.pause()

    def _save_given(self) -> None:
        """Save the checkpoint of a switch, while the next program trains."""
        assert self._step is not None
        self._waiting = False  # SIGTERM does not end a save
        saved, in_time = self._save(self._step), True
        self._settle()
        if saved and self._checkpoints is not None:
            in_time = self._checkpoints.wait(_DURABLE_S)
        self._note_durability()
        why = self.progress.save_error or self.progress.durability_error
        late = "" if in_time else f"the checkpoint is not durable after {_DURABLE_S:g} s"
        self._hand_over.report_kept(why or late, self.progress.checkpoint)
        self._waiting = True

    def _stand_still_together(self, request: dict[str, Any] | None) -> None:
        assert self._start_barrier is not None
        default = None
        if request is None and threading.current_thread() is threading.main_thread():
            default = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would not run while this waits
        if request is not None:
            self._stand_still(request)
        try:
            self._start_barrier.sum(0)  # the chief gets here only if training continues
        except Exception:
            time.sleep(_CHIEF_GONE_S)  # the chief has ended, most likely by a switch: this process will be ended too
            raise
        if default is not None:
            signal.signal(signal.SIGTERM, default)
        self.progress.pause()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _handle_sigterm(self) -> None:
        """Save at the next step after SIGTERM, unless the program has a handler of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
            return

        def terminate(*_: object) -> None:
            if self._waiting:
                self._end()
            self._terminated = self._has_work = True

        signal.signal(signal.SIGTERM, terminate)

    def _end(self) -> None:
        """End at once with SIGTERM's exit code: TensorFlow's threads may be waiting for replicas that are gone."""
        if not self._waiting:
            if self._checkpoints is not None:
                self._checkpoints.wait(_DURABLE_AT_END_S)
                self._checkpoints.lease.release()
            self.progress.write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_TERMINATED)


@functools.cache  # warn once in a process
def _warn_without_directory() -> None:
    print(
        "WARNING: ElasticCheckpoint has no directory: nothing is saved, a restart starts at step 0, and the job cannot "
        "be rescaled. Pass one, ElasticCheckpoint(checkpoint, '/checkpoints/mine'), or set the job's annotation "
        "elastic.kubeflow.org/checkpoint-dir",
        file=sys.stderr,
        flush=True,
    )
