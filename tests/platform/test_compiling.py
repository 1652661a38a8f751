"""Machine code of the decision core: never older than its sources, and there before the first decision waits
for it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from launch.compile_core import compile_core
from scheduling.core.kernels import PACKAGES, source_digest
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)
from scheduling.policies import DEFAULT_POLICY, policy_named

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, ...]:
    """The packages that hold kernels, copied to where they may be edited."""
    return tuple(
        Path(shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__")))
        for package in PACKAGES
    )


def test_an_edit_of_any_file_with_kernels_or_beside_them_changes_the_digest(copies: tuple[Path, ...]) -> None:
    before = source_digest(copies)
    assert before == source_digest(PACKAGES)
    sources = [source for folder in copies for source in sorted(folder.rglob("*.py"))]
    with_kernels = [source for source in sources if "@kernel\n" in source.read_text()]
    assert len(with_kernels) > 30
    for source in sources:
        text = source.read_bytes()
        source.write_bytes(text + b"# edited\n")
        assert source_digest(copies) != before, f"an edit of {source.name} went unseen"
        source.write_bytes(text)
    assert source_digest(copies) == before


def test_a_renamed_file_and_one_in_a_folder_further_down_are_seen(copies: tuple[Path, ...]) -> None:
    before = source_digest(copies)
    (copies[0] / "deeper").mkdir()
    (copies[0] / "deeper" / "more.py").write_text("")
    with_more = source_digest(copies)
    (copies[0] / "deeper" / "more.py").rename(copies[0] / "deeper" / "other.py")
    assert len({before, with_more, source_digest(copies)}) == 3


def test_kernels_outside_the_digested_packages_use_nothing_but_these_and_their_own_file() -> None:
    names = {".".join(folder.relative_to(ROOT).parts) for folder in PACKAGES}
    outside = [
        source
        for folder in ("cluster", "communication", "moe", "recovery", "scheduling", "simulation", "workers")
        for source in (ROOT / folder).rglob("*.py")
        if "@kernel\n" in source.read_text() and not any(package in source.parents for package in PACKAGES)
    ]
    for source in outside:
        module = importlib.import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
        for one in _kernels_of(module.__name__):
            used = [one.py_func.__globals__.get(name) for name in one.py_func.__code__.co_names]
            homes = {callee.py_func.__module__ for callee in used if isinstance(callee, CPUDispatcher)}
            assert all(home == module.__name__ or home.rpartition(".")[0] in names for home in homes), source


def test_after_the_start_no_decision_waits_for_a_compiler() -> None:
    compile_core()
    compiled = _signatures()
    for seed in range(12):
        _live_through(np.random.default_rng(seed), lends=(seed % 3 > 0), same_kind=seed % 3 == 2)
    _decide_a_burst(np.random.default_rng(0))
    late = {name: kinds for name, kinds in _signatures().items() if kinds != compiled.get(name, 0)}
    assert not late, f"compiled only when a decision needed them: {late}"


def _kernels_of(module: str) -> Iterator[CPUDispatcher]:
    for value in vars(sys.modules[module]).values():
        if isinstance(value, CPUDispatcher) and value.py_func.__module__ == module:
            yield value


def _signatures() -> dict[str, int]:
    """How many kinds of arguments each kernel has been compiled, or loaded, for."""
    return {
        f"{module}.{one.py_func.__name__}": len(one.signatures)
        for module in sorted(sys.modules)
        if module.startswith(tuple(".".join(folder.relative_to(ROOT).parts) for folder in PACKAGES))
        for one in _kernels_of(module)
    }


def _live_through(rng: np.random.Generator, *, lends: bool, same_kind: bool) -> None:
    """Some slots of a cluster's life, decided by the default policy."""
    policy = policy_named(DEFAULT_POLICY)
    servers = tuple(ServerSnapshot(f"own-{number}", 4) for number in range(2))
    if lends:
        servers += tuple(ServerSnapshot(f"lent-{n}", 4, on_loan=True, same_kind=same_kind) for n in range(2))
    snapshot = Snapshot(0.0, 5.0, servers, (), settings=PlannerSettings(slot_seconds=5.0))
    for slot in range(8):
        jobs = (
            *snapshot.jobs,
            *(_newcomer(rng, f"{slot}-{n}", snapshot.now) for n in range(rng.integers(3))),
        )
        snapshot = replace(snapshot, jobs=jobs)
        decision = policy.replan(snapshot) if slot % 2 else policy.admit(snapshot)
        refused = {verdict.job_id for verdict in decision.verdicts if not verdict.admitted}
        for job in (job for job in jobs if job.id in refused):
            policy.what_if(snapshot, replace(job, id=f"{job.id}-again"))
        promised = {verdict.job_id for verdict in decision.verdicts if verdict.promised}
        left = [
            replace(
                job,
                newcomer=False,
                promised=job.promised or job.id in promised,
                stored_plan=decision.plans.get(job.id, job.stored_plan),
                placement=decision.placements.get(job.id, ()),
                gpus_now=len(decision.placements.get(job.id, ())),
                flexible=decision.flexible.get(job.id, ()),
                remaining_iterations=max(0.0, job.remaining_iterations - 30.0),
                locked=bool(rng.random() < 0.1),
            )
            for job in jobs
            if job.id not in refused
        ]
        now = snapshot.now + 5.0
        snapshot = replace(snapshot, now=now, next_slot_at=now + (0.0 if slot % 2 else 5.0), jobs=tuple(left))


def _decide_a_burst(rng: np.random.Generator) -> None:
    """Very many newcomers in one decision, some for large jobs."""
    servers = tuple(ServerSnapshot(f"own-{number}", 4) for number in range(16))
    jobs = tuple(_newcomer(rng, f"burst-{number}", 0.0) for number in range(200))
    jobs = tuple(replace(job, deadline_at=2.0 * job.deadline_at) for job in jobs)
    policy_named(DEFAULT_POLICY).admit(
        Snapshot(0.0, 5.0, servers, jobs, settings=PlannerSettings(slot_seconds=5.0))
    )


def _newcomer(rng: np.random.Generator, name: str, now: float) -> JobSnapshot:
    kind = (ServiceClass.SLO, ServiceClass.SOFT, ServiceClass.BEST_EFFORT)[rng.integers(3)]
    levels = 2 ** np.arange(rng.integers(1, 4))
    rates = np.float64(rng.uniform(0.5, 2.0)) * levels.astype(np.float64) ** 0.8
    curve = ScalingCurve(levels, rates, rng.uniform(0.0, 2.0, levels.size))
    work = float(rng.uniform(5.0, 200.0))
    deadline = np.inf if kind is ServiceClass.BEST_EFFORT else now + work / rates[-1] * rng.uniform(0.8, 4.0)
    return JobSnapshot(name, kind, now, float(deadline), work, curve, newcomer=True, lent_curve=curve)
