"""Making results: runs one after the other or in several processes, resumable, and ended early by Ctrl-C."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

from simulation.engine.run import Progress, Simulation
from simulation.reproduction.runs import (
    RunSpec,
    run_key,
    settings_of,
    slo_jobs_possible_alone,
    slo_jobs_possible_as_requested,
    workload_of,
)
from simulation.reproduction.store import ResultStore, RunResult, result_of
from simulation.workloads.errors import TraceError

Told = Callable[[int, int, str], None]
"""Told about runs: how many are done, how many there are, and what is being done."""

POLL_SECONDS = 0.5


class OwnRun(Protocol):
    """A run that knows itself how it is made: those of other papers than ElasticFlow's."""

    @property
    def policy(self) -> str:
        """The policy that is run."""

    @property
    def trace(self) -> str:
        """The workload's name."""

    @property
    def seed(self) -> int:
        """What is drawn is drawn by this."""

    def described(self) -> str:
        """How the numbers of this run are made, in one line."""

    def as_json(self) -> dict[str, Any]:
        """The fields as plain values."""

    def key(self) -> str:
        """A name for the result: equal for equal jobs, settings and program."""

    def run(self, progress: Progress | None = None) -> RunResult:
        """The run to its end."""


AnyRun = RunSpec | OwnRun
logger = logging.getLogger(__name__)


@dataclass
class Results:
    """What there is of the runs asked for: results, and in a sentence why one is missing."""

    by_spec: dict[Any, RunResult] = field(default_factory=dict)
    failed: dict[Any, str] = field(default_factory=dict)
    interrupted: bool = False
    reused: int = 0

    def get(self, spec: AnyRun) -> RunResult | None:
        """The result of a run, None where it is missing."""
        return self.by_spec.get(spec)


def make_results(
    specs: Sequence[AnyRun],
    folder: Path,
    *,
    processes: int = 1,
    told: Told | None = None,
    progress: Progress | None = None,
) -> Results:
    """The results of all runs, from the store in ``folder`` where they are there. Ctrl-C returns what there
    is by then.

    ``progress`` is told about the run in this process (with one process). A trace that is missing fails its
    runs alone. Raises OSError where results cannot be stored.
    """
    results = Results()
    store = ResultStore(folder)
    todo: list[tuple[AnyRun, str]] = []
    ordered = sorted(
        dict.fromkeys(specs), key=lambda spec: (spec.trace, spec.seed)
    )  # a workload is read once
    told = told or (lambda done, count, name: None)
    try:
        for spec in ordered:
            try:
                key = _key(spec)
            except (TraceError, ValueError) as error:
                results.failed[spec] = str(error)
                continue
            stored = store.get(key)
            if stored is None:
                todo.append((spec, key))
            else:
                results.by_spec[spec] = stored
                results.reused += 1
        ahead = len(ordered) - len(todo)
        told(ahead, len(ordered), "")
        made = _in_processes(todo, processes) if processes > 1 and len(todo) > 1 else _here(todo, progress)
        for number, (spec, key, result) in enumerate(made, start=1):
            if isinstance(result, RunResult):
                store.put(key, spec.as_json(), result)
                results.by_spec[spec] = result
            else:
                results.failed[spec] = result
            told(ahead + number, len(ordered), f"{spec.policy} on {spec.trace}")
    except KeyboardInterrupt:
        results.interrupted = True
    for spec in ordered:
        if spec not in results.by_spec:
            results.failed.setdefault(spec, "not run: interrupted before")
    return results


Made = Iterator[tuple[AnyRun, str, RunResult | str]]


def _here(todo: Sequence[tuple[AnyRun, str]], progress: Progress | None) -> Made:
    for spec, key in todo:
        try:
            yield spec, key, run(spec, progress)
        except Exception as error:
            logger.exception("the run %s failed", spec.described())
            yield spec, key, _failure(error)


def _failure(error: BaseException) -> str:
    """One run that fails must not cost the others; the report names it, and the log says where it failed."""
    return f"failed: {type(error).__name__}: {error}"


def _key(spec: AnyRun) -> str:
    return run_key(spec) if isinstance(spec, RunSpec) else spec.key()


def run(spec: AnyRun, progress: Progress | None = None) -> RunResult:
    """One run to its end. Raises KeyboardInterrupt where it was ended early, TraceError for a missing
    trace."""
    if not isinstance(spec, RunSpec):
        return spec.run(progress)
    workload = workload_of(spec)
    outcome = Simulation(workload, settings_of(spec, workload), progress=progress).run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    bounds = {
        "slo_jobs_possible_alone": slo_jobs_possible_alone(spec, workload),
        "slo_jobs_possible_as_requested": slo_jobs_possible_as_requested(workload),
    }
    return result_of(outcome, bounds)


def _in_processes(todo: Sequence[tuple[AnyRun, str]], processes: int) -> Made:
    # Spawned, not forked: the bar draws in a thread, and compiled loops do not survive a fork everywhere.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(stop,)) as pool:
        with _stopping(stop, pool):
            waiting: dict[Future[RunResult | None], tuple[AnyRun, str]] = {
                pool.submit(_run_elsewhere, spec, key): (spec, key) for spec, key in todo
            }
            while waiting:
                done, _ = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
                for future in done:
                    spec, key = waiting.pop(future)
                    error = future.exception()
                    if error is not None:
                        logger.error("the run %s failed", spec.described(), exc_info=error)
                    result = future.result() if error is None else _failure(error)
                    if result is not None:
                        yield spec, key, result


@contextmanager
def _stopping(stop: Event, pool: ProcessPoolExecutor) -> Iterator[None]:
    """Whatever ends the block early ends the runs under way as well."""
    try:
        yield
    except BaseException:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        raise


_stop: Event | None = None


def _prepare(stop: Event) -> None:
    """In a new process: Ctrl-C is the parent's business, which says so by ``stop``."""
    global _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop = stop


def _run_elsewhere(spec: AnyRun, key: str) -> RunResult | None:
    """A run in another process; None where it was ended early. Raises RuntimeError where it would not be the
    run asked for."""

    def look(ended: int, jobs: int, at: float) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    if _key(spec) != key:
        raise RuntimeError("program or traces were changed since the command began: run it again")
    try:
        return run(spec, look)
    except KeyboardInterrupt:
        return None
