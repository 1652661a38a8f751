"""One schedule on a running platform: jobs, faults, recovery to calm, and the invariants."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.coverage import Charge, is_covered
from faults.injecting import Deed, carry_out
from faults.invariants import Violation, broken_promises
from faults.reading import after_the_calm, in_the_rows, jobs_of
from faults.schedule import Fault, Kind, schedule
from faults.within_reserve import within_reserve
from tests.chaos import evidence
from tests.faults.record import Entry
from tests.faults.scene import Scene
from tests.faults.works import CHECKPOINT_SECONDS, Submitter, submit, works
from tests.plugins.running_platform import QUICK_PERIODS

#: The least slack that a promise of these jobs keeps for one lost server
#: (scheduling/services/generations/failure_charges.py): fence, margin and a lease check; work since the last
#: checkpoint; two slots and a pause.
CHARGE = Charge(
    fence_seconds=float(QUICK_PERIODS["FENCE_SECONDS"]) + float(QUICK_PERIODS["FENCE_MARGIN_SECONDS"]) + 2.0,
    lost_seconds=CHECKPOINT_SECONDS,
    start_seconds=2 * float(QUICK_PERIODS["SLOT_SECONDS"]) + 10.0,
)
#: The longest time until calm after the last fault: jobs end, servers are up, processes run.
CALM_SECONDS = 240.0
LOOK_SECONDS = 0.5

_HELD = "select 1 from scheduling_assignment where state <> 'released' limit 1"
_SERVERS = "select name, state from cluster_server where state <> 'up'"


def measure(scene: Scene) -> float:
    """Have the function measured without faults; return its iterations a second on two GPUs."""
    job = submit(scene, "first", 10, None, 0)
    job.wait(timeout_seconds=300)
    rates = {int(level["gpus"]): float(level["iterations_per_second"]) for level in job.curve()["levels"]}
    return rates.get(2, min(rates.values()))


def drawn(scene: Scene, seed: int, seconds: float) -> list[Fault]:
    """Return the schedule of a seed for this platform."""
    targets, servers = scene.means.targets(), scene.means.servers()
    everything = schedule(seed, seconds, targets, scene.means.clocks, servers)
    return within_reserve(seed, seconds, everything, [*targets, *servers], scene.reserve_servers, CHARGE)


def run_schedule(
    scene: Scene,
    seed: int,
    seconds: float,
    speed: float,
    *,
    evidence_folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Entry:
    """Run one schedule and judge it. The evidence is kept if an invariant broke."""
    began = time.monotonic()
    faults = drawn(scene, seed, seconds)
    jobs, refused = Submitter(scene, works(seed, seconds), speed), []
    jobs.start()
    seen: set[Violation] = set()
    restarts = _restarts(scene)
    times_hold = not any(fault.kind is Kind.JUMP and not fault.target.server for fault in faults)
    with _Looking(scene, jobs, seen, times_hold):
        deeds = carry_out(faults, scene.means, say=say)
        jobs.join()
        refused = [Violation("no job refused", text) for text in jobs.errors]
        calm_began = time.monotonic()
        restless = wait_for_calm(scene, jobs.ids)
    if not restless:
        jobs.decline_offers()
    violations = [*refused, *restless, *sorted(seen, key=str)]
    after = after_the_calm(scene.rows, jobs.ids, scene.platform.folders.agents, times_hold=times_hold)
    violations += [violation for violation in after if violation not in seen]
    violations += ended_by_themselves(restarts, _restarts(scene), deeds)
    job_rows = jobs_of(scene.rows, jobs.ids)
    judged = judged_promises(job_rows, deeds, scene.reserve_servers)
    violations += judged.broken
    entry = Entry(
        seed=seed,
        seconds=seconds,
        faults=len(faults),
        carried_out=sum(deed.begun_at is not None for deed in deeds),
        jobs=len(jobs.ids),
        promised=sum(row["promise_outcome"] != "none" for row in job_rows),
        beyond_the_reserve=judged.beyond,
        reserve=scene.reserve_servers,
        planted=scene.planted,
        covered=is_covered([deed.fault for deed in deeds], scene.reserve_servers, CHARGE),
        judged=judged.covered,
        left_seconds=judged.left_seconds,
        violations=[str(violation) for violation in dict.fromkeys(violations)],
        calm_seconds=round(time.monotonic() - calm_began, 1),
        wall_seconds=round(time.monotonic() - began, 1),
        load=round(os.getloadavg()[0], 1),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if violations:
        entry.kept = str(_keep(scene, entry, deeds, job_rows, evidence_folder))
    return entry


def wait_for_calm(scene: Scene, jobs: Sequence[str], seconds: float = CALM_SECONDS) -> list[Violation]:
    """Wait until jobs have ended, all processes run, all servers are up and no GPU is held. Return what is
    missing after ``seconds`` as violations."""
    ends_at = time.monotonic() + seconds
    while missing := _missing(scene, jobs):
        if time.monotonic() > ends_at:
            return [Violation("all is calm again", what) for what in missing]
        time.sleep(LOOK_SECONDS)
    return []


def _missing(scene: Scene, jobs: Sequence[str]) -> list[str]:
    missing = [
        f"{name} does not run" for name, process in scene.platform.processes.items() if process.pid is None
    ]
    if missing and any(name.startswith("postgresql") for name in missing):
        return missing
    try:
        missing += [f"server {row['name']} is {row['state']}" for row in scene.rows(_SERVERS)]
        ends = ("completed", "declined", "failed", "cancelled")
        missing += [
            f"job {row['id']} is {row['state']}"
            for row in jobs_of(scene.rows, jobs)
            if row["state"] not in ends
        ]
        if not missing and scene.rows(_HELD):
            missing.append("a GPU is held")
    except Exception as error:  # noqa: BLE001 - the database is between two lives
        missing.append(f"the database does not answer: {error}")
    return missing


def _restarts(scene: Scene) -> dict[str, int]:
    return {name: process.restarts for name, process in scene.platform.processes.items()}


def ended_by_themselves(
    before: Mapping[str, int], after: Mapping[str, int], deeds: Sequence[Deed]
) -> list[Violation]:
    """Return violations for processes that their supervisor restarted more often than they were killed."""
    killed = Counter(
        deed.fault.target.name
        for deed in deeds
        if deed.begun_at is not None and deed.fault.kind in (Kind.KILL, Kind.RESTART)
    )
    return [
        Violation(
            "no process ends by itself",
            f"{name} was started {restarts - before.get(name, 0)} times and killed {killed[name]} times",
        )
        for name, restarts in after.items()
        if restarts - before.get(name, 0) > killed[name]
    ]


@dataclass(frozen=True)
class Judged:
    """The outcome of a schedule's promises. ``broken``: broken ones among the ``covered`` that the reserve
    covers. ``beyond``: those broken by more than it covers. ``left_seconds``: the least time that a covered
    job had left when it was done, negative after its deadline; None without any."""

    broken: list[Violation]
    beyond: int
    covered: int
    left_seconds: float | None


def judged_promises(jobs: Sequence[Mapping[str, Any]], deeds: Sequence[Deed], reserve_servers: int) -> Judged:
    """Judge every promise by the faults in the life of its job."""
    lives = {row["id"]: faults_in_the_life_of(row, deeds) for row in jobs}
    promised = [row for row in jobs if row["promise_outcome"] != "none"]
    covered = [row for row in promised if is_covered(lives[row["id"]], reserve_servers, CHARGE)]
    broken = [
        Violation("no promise broken that the reserve covers", _describe(row, lives[row["id"]]))
        for row in broken_promises(covered)
    ]
    left = [
        round((row["deadline_at"] - row["finished_at"]).total_seconds(), 1)
        for row in covered
        if row["deadline_at"] is not None and row["finished_at"] is not None
    ]
    beyond = len(broken_promises(promised)) - len(broken)
    return Judged(broken, beyond, len(covered), min(left, default=None))


def _describe(row: Mapping[str, Any], lived: Sequence[Fault]) -> str:
    return (
        f"{row['name']} ({row['id']}): {row['promise_outcome']} {row['void_reason']}, {row['state']}, "
        f"deadline {row['deadline_at']}, done {row['finished_at']}, "
        f"through {len(lived)} faults: {'; '.join(map(str, lived)) or 'none'}"
    )


def faults_in_the_life_of(job: Mapping[str, Any], deeds: Sequence[Deed]) -> list[Fault]:
    """Return the faults during a job's life, or all faults if the clocks that its times are by jumped."""
    jumped = any(deed.fault.kind is Kind.JUMP and not deed.fault.target.server for deed in deeds)
    return [
        deed.fault
        for deed in deeds
        if deed.begun_at is not None and (jumped or _in_the_life(job, deed.begun_at, deed.ended_at))
    ]


def _in_the_life(job: Mapping[str, Any], begun_at: datetime, ended_at: datetime | None) -> bool:
    before_its_end = job["finished_at"] is None or begun_at <= job["finished_at"]
    return before_its_end and (ended_at is None or ended_at >= job["submitted_at"])


class _Looking:
    """Polls the rows during the faults for what must hold at every moment."""

    def __init__(self, scene: Scene, jobs: Submitter, seen: set[Violation], times_hold: bool) -> None:
        self._scene, self._jobs, self._seen, self._times_hold = scene, jobs, seen, times_hold
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="looking", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *what: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(1.0):
            try:
                jobs = list(self._jobs.ids)
                self._seen.update(in_the_rows(self._scene.rows, jobs, times_hold=self._times_hold))
            except Exception:  # noqa: BLE001 - the database is between two lives
                continue


def _keep(
    scene: Scene, entry: Entry, deeds: Sequence[Deed], jobs: Sequence[Mapping[str, Any]], folder: Path | None
) -> Path:
    saved_in = Path(tempfile.mkdtemp(prefix=f"faults-{entry.seed}-", dir=folder))
    done = [
        evidence.Deed(deed.begun_at, f"{deed.fault}: {deed.what}")
        for deed in deeds
        if deed.begun_at is not None
    ]
    done += [
        evidence.Deed(deed.ended_at, f"over: {deed.fault}")
        for deed in deeds
        if deed.ended_at is not None and deed.fault.seconds
    ]
    evidence.keep(scene.rows, scene.platform.folders.logs, saved_in, [row["id"] for row in jobs], done)
    (saved_in / "finding.txt").write_text(
        "\n".join([entry.to_line(), "", *entry.violations, "", *(f"{d.fault}: {d.what}" for d in deeds)])
        + "\n"
    )
    return saved_in
