"""Runs several profiles and seeds in parallel processes. After an interrupt it returns partial results."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from elastic_tfjob.scheduling.profile_errors import ProfileError
from elastic_tfjob.scheduling.profiles import ProfileParameters, build
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.interrupts import SIGNALS, Interrupt, stopping
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.teams import TeamNumbers, static_part, teams_in

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A profile by name, and the inputs to simulate it on. It can be pickled and sent to another process. `trace`:
    record the data that the report page draws."""

    profile: str
    parameters: ProfileParameters
    inputs: SimulationInput
    trace: bool = False


Progress = Callable[[int, float, int, int], None]
"""A callback with the index of the run, the simulated time (seconds), the number of finished jobs and the total number
of jobs."""


class ProcessDied(RuntimeError):
    """The process of a run ended without returning a result."""


class RunFailed(RuntimeError):
    """A run failed in the profile's code. The message names the profile, the simulated time, the error and its line."""

    def __init__(self, profile: str, problem: str) -> None:
        super().__init__(profile, problem)  # both arguments, so that it can be pickled
        self.profile = profile
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class RunsFailed(RuntimeError):
    """Some runs failed. `outcomes`: the results of the other ones, in the order of their specs."""

    def __init__(self, failures: Sequence[RunFailed], outcomes: list[RunResult]) -> None:
        super().__init__(failures, outcomes)
        self.failures = failures
        self.outcomes = outcomes

    @property
    def problems(self) -> list[str]:
        """The first failure of each profile, with the number of its other failed runs."""
        by_profile: dict[str, list[RunFailed]] = {}
        for failure in self.failures:
            by_profile.setdefault(failure.profile, []).append(failure)
        return [
            str(each[0]) + (f"; {len(each) - 1} other run(s) of it failed, too" if len(each) > 1 else "")
            for each in by_profile.values()
        ]

    def __str__(self) -> str:
        return "; ".join(self.problems)


def uniform_cluster(nodes: int, gpus: int, cpus: float, memory_gib: float) -> list[Node]:
    """A cluster of `nodes` equal nodes."""
    each = Resources(round(cpus * 1000), round(memory_gib * 1024**3), gpus)
    width = len(str(max(nodes - 1, 0)))
    return [Node(f"node-{i:0{width}}", each, each) for i in range(nodes)]


def of_team_alone(spec: RunSpec, team: str) -> RunSpec:
    """The same run with the jobs of one team, alone on its static part of the cluster."""
    rules = spec.inputs.teams
    assert rules is not None
    names = teams_in([job.key for job in spec.inputs.jobs], rules)
    part = rules.terms(team).weight / sum(rules.terms(name).weight for name in names)
    jobs = [job for job in spec.inputs.jobs if teams_in([job.key], rules) == (team,)]
    inputs = replace(spec.inputs, jobs=jobs, nodes=static_part(spec.inputs.nodes, part), node_changes=(), teams=None)
    known = "teams" in type(spec.parameters).model_fields
    parameters = spec.parameters.model_copy(update={"teams": None}) if known else spec.parameters
    return RunSpec(spec.profile, parameters, inputs)


def beside_alone(
    spec: RunSpec, teams: Sequence[TeamNumbers], run: Callable[[Sequence[RunSpec]], list[RunResult]]
) -> tuple[TeamNumbers, ...]:
    """What each team got, with the sharing incentive: beside that team alone on its static part of the cluster."""
    alone = run([of_team_alone(spec, team.team) for team in teams])
    return tuple(team.beside(outcome.records) for team, outcome in zip(teams, alone, strict=True))


def run_one(
    spec: RunSpec, progress: Callable[[float, int, int], None] | None = None, stop: Interrupt | None = None
) -> RunResult:
    """One run. If it is interrupted (by KeyboardInterrupt, also one raised in `progress`, or by a signal recorded in
    `stop`), it returns the results so far, marked partial. Raises RunFailed for an error of the profile, and errors of
    `progress` unchanged."""
    stop, of_progress = stop or Interrupt(), list[Exception]()

    def report(now: float, done: int, total: int) -> None:
        stop.check()
        if progress is not None:
            try:
                progress(now, done, total)
            except Exception as error:
                of_progress.append(error)
                raise

    profile = build(spec.profile, spec.parameters)
    simulation = Simulation(spec.inputs, profile, trace=spec.trace, progress=report)
    try:
        with stop.interrupting():
            return simulation.run()
    except KeyboardInterrupt:
        simulation.outcome.partial = True
        return simulation.outcome
    except (Exception, SystemExit) as error:
        if error in of_progress:
            raise
        raise _run_failed(spec.profile, simulation.snapshot.now, error) from error


def _run_failed(profile: str, now: float, error: BaseException) -> RunFailed:
    found = ProfileError.of(profile, error)
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))  # such as the job of an endless round
    return RunFailed(profile, f"{found.subject} failed at {now:.0f} s: {found.problem}{notes}")


def run_all(
    specs: Sequence[RunSpec], progress: Progress, workers: int | None = None, stop: Interrupt | None = None
) -> list[RunResult]:
    """The results of all runs, in the order of `specs`. After a signal recorded in `stop`, the current runs return
    partial results and the remaining ones do not start. After a second signal, the results of runs that have not
    returned are omitted, too.

    A run that fails does not stop the others: RunsFailed is raised after them, and has their results. Raises
    ProcessDied if the system killed a run's process, and any other exception that a run raises.
    """
    stop, workers = stop or Interrupt(), min(len(specs), workers or os.cpu_count() or 1)
    if workers > 1:
        return _Processes(workers, specs, progress, stop).run()
    outcomes, failures = list[RunResult](), list[RunFailed]()
    for k, spec in enumerate(specs):
        if stop.number:
            break
        try:
            outcome = run_one(spec, lambda now, done, total, k=k: progress(k, now, done, total), stop)  # type: ignore[misc]
        except RunFailed as failure:
            failures.append(failure)
            continue
        outcomes.append(outcome)
        if outcome.partial:
            break
    return _finished(outcomes, failures)


def _finished(outcomes: list[RunResult], failures: Sequence[RunFailed]) -> list[RunResult]:
    if failures:
        raise RunsFailed(failures, outcomes)
    return outcomes


class _Processes:
    """Runs in separate processes. Each process has one pipe: it receives specs and sends progress and results. A
    process ends when its pipe is closed, so no process outlives its parent."""

    def __init__(self, workers: int, specs: Sequence[RunSpec], progress: Progress, stop: Interrupt) -> None:
        self.specs, self.progress, self.stop = specs, progress, stop
        self.outcomes: dict[int, RunResult] = {}
        self.failures: dict[int, RunFailed] = {}
        self._waiting = list(range(len(specs)))[::-1]
        self._running: dict[Connection, int] = {}
        self._processes: dict[Connection, SpawnProcess] = {}
        self._workers = workers

    def run(self) -> list[RunResult]:
        try:
            self._start()
            signals = 0
            while self._running:
                if self.stop.times > signals:
                    signals = self.stop.times
                    self._end(kill=signals > 1)
                for pipe in wait(list(self._running), timeout=POLL_S):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        finally:
            for pipe, process in self._processes.items():
                pipe.close()
                process.kill()  # idle, or its result is no longer needed
                process.join()
        failures = [self.failures[k] for k in sorted(self.failures)]
        return _finished([self.outcomes[k] for k in sorted(self.outcomes)], failures)

    def _start(self) -> None:
        # A new process starts with these signals blocked: Ctrl-C reaches every process of the terminal, and a process
        # that is still importing has no handler. Starting the resource tracker unblocks them, so it is started first.
        resource_tracker.ensure_running()
        context = get_context("spawn")
        for _ in range(self._workers):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                process.start()
                self._processes[pipe] = process
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
            self._give(pipe)

    def _give(self, pipe: Connection) -> None:
        if self._waiting and not self.stop.number:
            k = self._waiting.pop()
            self._running[pipe] = k
            pipe.send(self.specs[k])

    def _end(self, *, kill: bool) -> None:
        for pipe in list(self._running):
            process = self._processes[pipe]
            if kill:
                process.kill()
                del self._running[pipe]
            else:
                process.terminate()

    def _hear(self, pipe: Connection) -> None:
        k = self._running[pipe]
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            process = self._processes[pipe]
            process.join()
            raise ProcessDied(
                f"the process that ran {self.specs[k].profile} ended with {process.exitcode}; if memory is short, "
                "try fewer processes (--jobs)"
            ) from None
        match message:
            case RunResult():
                self.outcomes[k] = message
                del self._running[pipe]
                if not message.partial:  # after a partial result, that process would end its next run at once
                    self._give(pipe)
            case RunFailed():
                self.failures[k] = message
                del self._running[pipe]
                self._give(pipe)
            case BaseException():
                raise message
            case _:
                self.progress(k, *message)


def _serve(pipe: Connection) -> None:
    """Run the specs received from the pipe until it is closed. A run interrupted by a signal returns partial
    results."""
    with stopping() as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            while True:
                spec = pipe.recv()
                try:
                    answer: RunResult | Exception = run_one(spec, lambda *told: pipe.send(told), stop)
                except OSError:
                    raise
                except Exception as error:
                    answer = _portable(error)
                pipe.send(answer)
        except (EOFError, OSError):
            return  # the parent process has closed the pipe


def _portable(error: Exception) -> Exception:
    """The error itself, or a RuntimeError with its type and message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
