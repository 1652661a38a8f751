"""Execution of runs: one after another or in several processes, resumable, and ended early by Ctrl-C."""

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

from research.runs import RunSpec
from research.store import ResultStore, RunResult
from simulation.engine.run import Progress
from simulation.workloads.errors import TraceError

Told = Callable[[int, int, str], None]
"""A callback that receives runs done, all runs, and the name of the present one."""

POLL_SECONDS = 0.5
logger = logging.getLogger(__name__)


@dataclass
class Results:
    """Results of the requested runs, and for each missing one a sentence on why."""

    #: Results of the runs that have one.
    by_spec: dict[RunSpec, RunResult] = field(default_factory=dict)
    #: Why a run has no result.
    failed: dict[RunSpec, str] = field(default_factory=dict)
    #: Whether the user stopped the runs.
    interrupted: bool = False
    #: Number of results read from the folder of earlier runs.
    reused: int = 0

    def get(self, spec: RunSpec) -> RunResult | None:
        """Return the result of a run, None if it is missing."""
        return self.by_spec.get(spec)


def make_results(
    specs: Sequence[RunSpec],
    folder: Path,
    *,
    processes: int = 1,
    told: Told | None = None,
    progress: Progress | None = None,
) -> Results:
    """Return the results of all runs, from the store in ``folder`` if they are there. Ctrl-C returns the
    results so far.

    ``progress`` receives the progress of the run in this process (with one process). A missing trace fails
    only its own runs. Raises OSError if results cannot be stored.
    """
    results = Results()
    store = ResultStore(folder)
    todo: list[tuple[RunSpec, str]] = []
    ordered = sorted(dict.fromkeys(specs), key=lambda spec: spec.place)  # a workload is read once
    told = told or (lambda done, count, name: None)
    try:
        for spec in ordered:
            try:
                key = spec.key()
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
            told(ahead + number, len(ordered), spec.name)
    except KeyboardInterrupt:
        results.interrupted = True
    for spec in ordered:
        if spec not in results.by_spec:
            results.failed.setdefault(spec, "not run: interrupted before")
    return results


Made = Iterator[tuple[RunSpec, str, RunResult | str]]


def _here(todo: Sequence[tuple[RunSpec, str]], progress: Progress | None) -> Made:
    for spec, key in todo:
        try:
            yield spec, key, spec.run(progress)
        except Exception as error:
            logger.exception("the run %s failed", spec.described())
            yield spec, key, _failure(error)


def _failure(error: BaseException) -> str:
    """Return the text of a failed run, which must not stop the others; the log has the traceback."""
    return f"failed: {type(error).__name__}: {error}"


def _in_processes(todo: Sequence[tuple[RunSpec, str]], processes: int) -> Made:
    # Spawned, not forked: the progress bar runs a thread, and compiled loops may not survive a fork.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(stop,)) as pool:
        with _stopping(stop, pool):
            waiting: dict[Future[RunResult | None], tuple[RunSpec, str]] = {
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
    """End the runs under way if the block ends with an exception."""
    try:
        yield
    except BaseException:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        raise


_stop: Event | None = None


def _prepare(stop: Event) -> None:
    """Prepare a new process: ignore Ctrl-C, which the parent handles and passes on by ``stop``."""
    global _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop = stop


def _run_elsewhere(spec: RunSpec, key: str) -> RunResult | None:
    """Make a run in another process; None if it was ended early. Raises RuntimeError if the program or the
    traces have changed since it was requested."""

    def look(ended: int, jobs: int, at: float) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    if spec.key() != key:
        raise RuntimeError("program or traces were changed since the command began: run it again")
    try:
        return spec.run(look)
    except KeyboardInterrupt:
        return None
