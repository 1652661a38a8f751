"""Compiles the decision core before a verdict needs it: `python -m launch.compile_core`.

Numba compiles its hot loops at first use and caches them on disk. That takes a minute, longer than a planning
task may run. So it is done once, in parallel with the rest of the start, and a mark is written at the end.

To find the code to compile, it simulates a small synthetic cluster: newcomers of every class, a promise that
cannot be made, and a plan that has to move, shrink and suspend; then the same with borrowed servers of
another kind of GPU, and of the cluster's own kind.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.serialize import dumps
from numba.core.typing.typeof import Purpose, typeof

from kernels import compiling, interpreting
from launch.privileges import child_setup
from scheduling.core.elasticflow import offers
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.choosing import ReclaimQuestion, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    BlockedGpus,
    HeldOffer,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)
from scheduling.policies import DEFAULT_POLICY, policy_named

_DUMPS: Any = dumps
_TYPE_OF: Any = typeof
_SLOT_SECONDS = 5.0
_SLOTS = 16
_BURST = 64
_LONGEST_WAIT_SECONDS = 60.0
"""Limit on waiting for the other process, which never finishes a claimed kernel after a failure."""


def compile_core() -> None:
    """Run the default policy and the search for offers on small snapshots."""
    rng = np.random.default_rng(0)
    owned = tuple(ServerSnapshot(f"server-{number}", 4, usable=number < 2) for number in range(3))
    _live(owned, rng)
    _decide_a_burst(owned)
    for same_kind in (False, True):
        lent = tuple(
            ServerSnapshot(f"lent-{number}", 4, on_loan=True, same_kind=same_kind) for number in range(2)
        )
        _live(owned + lent, rng)
    _reclaim_servers()


def _live(servers: tuple[ServerSnapshot, ...], rng: np.random.Generator) -> None:
    """Simulate a cluster for some slots. If the last server is borrowed, it is returned early."""
    policy = policy_named(DEFAULT_POLICY)
    snapshot = _first_snapshot(servers)
    impossible = replace(_job("impossible", ServiceClass.SLO, 20.0), remaining_iterations=1e6)
    for step in range(_SLOTS):
        admitted = policy.admit(snapshot)
        snapshot = _after(snapshot, admitted, snapshot.next_slot_at)
        found = offers.find_offer(snapshot, impossible)
        held = (HeldOffer("held", found.plan, snapshot.now + 120.0, impossible),) if found else ()
        snapshot = replace(snapshot, held_offers=held)
        snapshot = _after(snapshot, policy.replan(snapshot), snapshot.now + _SLOT_SECONDS)
        newcomers = (
            _job(f"tight-{step}", ServiceClass.SLO, snapshot.now + 60.0, newcomer=True, now=snapshot.now),
            _job(f"free-{step}", ServiceClass.BEST_EFFORT, float("inf"), newcomer=True, now=snapshot.now),
            *(_one_of_a_crowd(rng, f"crowd-{step}-{number}", snapshot.now) for number in range(3)),
        )
        last = sum(server.gpus for server in servers) - 1
        blocked = (BlockedGpus((0, 1, last), snapshot.now + 10.0),) if step % 2 else ()
        # Now and then one job is in the middle of a change and keeps its GPUs.
        jobs = [replace(job, locked=step % 3 == 2 and job.id.startswith("free")) for job in snapshot.jobs]
        if step == 3 and servers[-1].on_loan:
            snapshot = replace(snapshot, servers=(*servers[:-1], replace(servers[-1], usable=False)))
        snapshot = replace(snapshot, jobs=(*jobs, *newcomers), blocked=blocked)
    offers.what_if(snapshot, impossible)


def _decide_a_burst(servers: tuple[ServerSnapshot, ...]) -> None:
    """Admit enough newcomers at once that the forecast of moves keeps its states, and GPU time is counted."""
    jobs = tuple(
        _job(f"burst-{number}", ServiceClass.SLO, 150.0 + 40.0 * number, newcomer=True)
        for number in range(_BURST)
    )
    settings = PlannerSettings(slot_seconds=_SLOT_SECONDS, reserve_servers=0)
    policy_named(DEFAULT_POLICY).admit(Snapshot(0.0, _SLOT_SECONDS, servers, jobs, settings=settings))


def _reclaim_servers() -> None:
    """Choose servers to return: one is idle, one holds only flexible workers, and all but one of the others
    go."""
    jobs, servers = 4, 6
    question = ReclaimQuestion(
        fleet=Fleet(np.full(servers, 4), np.arange(servers) > 0, np.full(servers, NO_ROLE)),
        workers=WorkerMap(
            offsets=np.array([0, 2, 4, 6, 7]),
            server=np.array([2, 1, 2, 3, 3, 4, 4]),
            base=np.array([1, 0, 1, 1, 1, 1, 1]),
            flexible=np.array([1, 2, 0, 1, 0, 0, 0]),
        ),
        gpus_per_worker=np.ones(jobs, dtype=np.int64),
        remaining_iterations=np.full(jobs, 100.0),
        lent=Speeds(np.arange(0, 2 * jobs + 1, 2), np.tile([1, 4], jobs), np.tile([1.0, 3.0], jobs)),
        servers=4,
    )
    for method in (ReclaimMethod.LYRA, ReclaimMethod.IMPROVED):
        choose_servers(question, method)


def _first_snapshot(servers: tuple[ServerSnapshot, ...]) -> Snapshot:
    jobs = (
        _job("hard", ServiceClass.SLO, 120.0, newcomer=True),
        _job("wish", ServiceClass.SOFT, 90.0, newcomer=True),
        _job("free", ServiceClass.BEST_EFFORT, float("inf"), newcomer=True),
    )
    settings = PlannerSettings(slot_seconds=_SLOT_SECONDS, reserve_servers=0)
    return Snapshot(0.0, _SLOT_SECONDS, servers, jobs, settings=settings)


def _job(
    name: str, service_class: ServiceClass, deadline_at: float, *, newcomer: bool = False, now: float = 0.0
) -> JobSnapshot:
    curve = ScalingCurve(
        levels=np.array([1, 2, 4, 8], dtype=np.int64),
        throughput=np.array([2.0, 3.6, 6.0, 9.0]),
        pause_seconds=np.array([0.5, 0.5, 0.6, 0.7]),
    )
    return JobSnapshot(
        name, service_class, now, deadline_at, 200.0, curve,
        newcomer=newcomer, finishing_seconds=0.5, lent_curve=curve,
    )  # fmt: skip


def _one_of_a_crowd(rng: np.random.Generator, name: str, now: float) -> JobSnapshot:
    """Return a newcomer that leaves little room, so that plans have to be repaired for the moves that it
    causes."""
    levels = 2 ** np.arange(rng.integers(1, 4))
    rates = np.asarray(rng.uniform(0.5, 2.0) * levels**0.8, dtype=np.float64)
    curve = ScalingCurve(levels, rates, rng.uniform(0.5, 4.0, levels.size))
    seconds = rng.uniform(5.0, 40.0)
    job = _job(name, ServiceClass.SLO, now + seconds * rng.uniform(1.1, 2.0), newcomer=True, now=now)
    return replace(job, curve=curve, remaining_iterations=float(rates[-1] * seconds))


def _after(snapshot: Snapshot, decision: Decision, now: float) -> Snapshot:
    """Return the snapshot a little later, with the decision carried out."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted:
            continue
        placement = decision.placements.get(job.id, ())
        jobs.append(
            replace(
                job,
                newcomer=False,
                promised=job.promised or (verdict is not None and verdict.promised),
                stored_plan=decision.plans.get(job.id),
                gpus_now=len(placement),
                placement=placement,
                flexible=decision.flexible.get(job.id, ()),
                remaining_iterations=max(5.0, job.remaining_iterations - 10.0),
            )
        )
    return replace(snapshot, now=now, next_slot_at=now + _SLOT_SECONDS, jobs=tuple(jobs))


def compile_in_two_processes() -> None:
    """Compile the kernels that Python calls, and all that they call.

    A first process runs them as plain Python, which takes three seconds, and records their argument types.
    Then two processes compile kernels from this list, one from its beginning and one from its end. Each loads
    from disk what the other has compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls"
        _start("note", calls, {compiling.INTERPRET_VARIABLE: "1"}).communicate()
        if not calls.exists():
            return
        helper = _start("help", calls, {})
        try:
            _compile_share(calls, from_end=False)
        finally:
            helper.communicate()


def _start(part: str, calls: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "launch.compile_core", part, str(calls)],
        cwd=Path(__file__).parents[1], env=os.environ | variables, preexec_fn=child_setup(signal.SIGKILL),
    )  # fmt: skip


def _note_calls(path: Path) -> None:
    """Record which kernels Python calls, with their argument types."""
    calls: dict[tuple[str, str, Any], None] = {}

    def note(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        types = tuple(_TYPE_OF(argument, Purpose.argument) for argument in arguments)
        calls[function.__module__, function.__qualname__, types] = None

    interpreting.observers.append(note)
    compile_core()
    path.write_bytes(_DUMPS(list(calls)))


def _compile_share(path: Path, *, from_end: bool) -> None:
    """Compile kernels of the list that no other process has begun."""
    _take_turns(path.parent)
    calls = list(enumerate(pickle.loads(path.read_bytes())))  # noqa: S301 (written by this command)
    for number, (module, name, types) in reversed(calls) if from_end else calls:
        try:
            path.with_name(str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        getattr(importlib.import_module(module), name).compile(types)


def _take_turns(folder: Path) -> None:
    """Make the loading of kernels wait while the other process compiles the same kernel."""
    kept_code: Any = compiling.KeptCode
    load, claimed = kept_code.load_overload, set[Path]()

    def load_or_wait(kept: compiling.KeptCode, types: Any, context: Any) -> Any:
        code = kept.path(types)
        claim = folder / code.name
        until = time.monotonic() + _LONGEST_WAIT_SECONDS
        while True:
            loaded = load(kept, types, context)
            if loaded is not None or claim in claimed or time.monotonic() > until:
                return loaded
            with contextlib.suppress(FileExistsError):
                claim.touch(exist_ok=False)
                claimed.add(claim)
                return None
            while not code.exists() and time.monotonic() < until:
                time.sleep(0.02)

    kept_code.load_overload = load_or_wait


def main() -> None:
    """Compile what is not compiled yet, then mark the machine code as complete."""
    # Most objects that the compiler allocates live long; frequent garbage collection would take a tenth of
    # the time.
    gc.set_threshold(200_000, 20, 100)
    match sys.argv[1:]:
        case ["note", path]:
            _note_calls(Path(path))
        case ["help", path]:
            _compile_share(Path(path), from_end=True)
        case _ if not compiling.machine_code_is_complete():
            if (os.cpu_count() or 1) > 1:
                compile_in_two_processes()
            compile_core()
            compiling.mark_complete()


if __name__ == "__main__":
    main()
