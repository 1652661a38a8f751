"""Machine code of the decision core: never older than its sources, and there before the first decision waits
for it. Until it is there, the kernels give the same answers as they stand."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.core.registry import CPUDispatcher

from launch.compile_core import compile_core
from scheduling.core.elasticflow.expected_demand import ExpectedDemand
from scheduling.core.interpreting import interpreted
from scheduling.core.kernels import INTERPRET_VARIABLE, PACKAGES, leaf, source_digest
from scheduling.core.question.decision import Decision, ReasonCode
from scheduling.core.question.snapshot import (
    Fill,
    FloatArray,
    JobSnapshot,
    Newcomers,
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
    with_kernels = [source for source in sources if _has_kernels(source)]
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
        if _has_kernels(source) and not any(package in source.parents for package in PACKAGES)
    ]
    for source in outside:
        module = importlib.import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
        for one in _kernels_of(module.__name__):
            used = [one.py_func.__globals__.get(name) for name in one.py_func.__code__.co_names]
            homes = {callee.py_func.__module__ for callee in used if isinstance(callee, CPUDispatcher)}
            assert all(home == module.__name__ or home.rpartition(".")[0] in names for home in homes), source


def test_a_leaf_returns_no_array_and_makes_none() -> None:
    """It borrows arrays: what it returned would be freed under its user (decision 0040)."""

    def returns(numbers: FloatArray) -> FloatArray:
        return numbers

    def makes(count: int) -> float:
        return float(np.zeros(count)[0])

    with pytest.raises(TypeError, match="numbers alone"):
        leaf(returns)
    with pytest.raises(TypingError):
        leaf(makes)(3)


def test_after_the_start_no_decision_waits_for_a_compiler() -> None:
    compile_core()
    compiled = _signatures()
    for seed in range(12):
        _live_through(np.random.default_rng(seed), **_kind_of_life(seed))
    _decide_a_burst(np.random.default_rng(0))
    late = {name: kinds for name, kinds in _signatures().items() if kinds != compiled.get(name, 0)}
    assert not late, f"compiled only when a decision needed them: {late}"


def test_the_lives_that_kernels_are_compiled_for_keep_room_back_and_let_jobs_in() -> None:
    """Otherwise the tests around this one would not see what prudent newcomers need compiled."""
    reasons = Counter(
        (verdict.reason_code, verdict.promised)
        for seed in range(12)
        for decision in _live_through(np.random.default_rng(seed), **_kind_of_life(seed))
        for verdict in decision.verdicts
    )
    assert reasons[ReasonCode.ROOM_KEPT, False] > 3
    assert sum(count for (_, promised), count in reasons.items() if promised) > 20


def test_the_planners_worker_loads_all_kernels_before_its_pool_begins() -> None:
    """Otherwise the first pass over a burst takes seconds more. Workers that decide nothing load none."""
    told = {queue: json.loads(_run_here(f"tell_loaded({queue!r})")) for queue in ("planner", "control")}
    assert told["planner"]["loaded"] > 50
    assert not told["planner"]["late"], "loaded only when a decision needed them"
    assert told["control"]["loaded"] == 0
    assert told["control"]["late"], "this test would not see what is loaded late"


def test_until_the_machine_code_is_there_decisions_are_the_same(tmp_path: Path) -> None:
    """In a process that shall not wait for the compiler, and in this one, whose kernels are compiled."""
    told = _run(tmp_path, "from tests.platform.test_compiling import tell_decisions; tell_decisions()")
    meanwhile = json.loads(told)
    assert meanwhile["interpreted"]
    assert sum(map(len, meanwhile["decisions"])) > 90
    assert meanwhile["decisions"] == _decisions()


def test_a_process_interprets_kernels_only_where_it_is_told_to_and_machine_code_is_missing(
    tmp_path: Path,
) -> None:
    asked = "from scheduling.core import kernels; print(kernels.INTERPRETED, kernels.completion_mark())"
    missing, mark = _run(tmp_path, asked).split()
    assert (missing, _run(tmp_path, asked, told=False).split()) == ("True", ["False", mark])
    Path(mark).touch()
    assert _run(tmp_path, asked).split() == ["False", mark]


def test_a_kernel_that_is_interpreted_takes_and_gives_what_a_compiled_one_does() -> None:
    def bundled(
        rate: float, level: int, pair: tuple[float, bool]
    ) -> tuple[float, list[int], tuple[float, bool]]:
        values = np.zeros(2)
        values[0] = rate / pair[0]
        return values[0], [level], (level / rate, not pair[1])

    answer = interpreted(bundled)(2.0, 3, (0.0, True))
    assert answer == (float("inf"), [3], (1.5, False))
    assert [type(each) for each in (answer[0], answer[1][0], *answer[2])] == [float, int, float, bool]


def _run(cache: Path, program: str, *, told: bool = True) -> str:
    """What a process prints that finds no machine code but that below ``cache``."""
    environment = {"PATH": os.environ["PATH"], "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    if told:
        environment[INTERPRET_VARIABLE] = "1"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _run_here(call: str) -> str:
    """What a process prints that finds the machine code of this one, and calls a function of this file."""
    program = f"from tests.platform import test_compiling; test_compiling.{call}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def tell_loaded(queue: str) -> None:
    """For a process of its own: print how many kernels the worker of a queue has loaded when it has been
    made, and which more it loads for decisions."""
    from config.celery import app

    # Whoever runs this file alone has machine code, but no mark.
    with patch("scheduling.core.kernels.machine_code_is_complete", return_value=True):
        app.Worker(queues=[queue], concurrency=1)
    loaded = _signatures()
    for seed in range(0, 12, 2):
        _live_through(np.random.default_rng(seed), **_kind_of_life(seed))
    _decide_a_burst(np.random.default_rng(0))
    late = [name for name, kinds in _signatures().items() if kinds != loaded.get(name, 0)]
    print(json.dumps({"loaded": sum(loaded.values()), "late": late}))


def tell_decisions() -> None:
    """For a process of its own: print what it decides."""
    from scheduling.core.kernels import INTERPRETED

    print(json.dumps({"interpreted": INTERPRETED, "decisions": _decisions()}))


def _decisions() -> list[list[Any]]:
    found = [_live_through(np.random.default_rng(seed), **_kind_of_life(seed)) for seed in range(12)]
    found.append([_decide_a_burst(np.random.default_rng(0))])
    return [[_plain(decision) for decision in decisions] for decisions in found]


def _plain(value: Any) -> Any:
    """As JSON has it, numbers to the last bit."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _has_kernels(source: Path) -> bool:
    text = source.read_text()
    return "@kernel\n" in text or "@leaf\n" in text


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


def _kind_of_life(seed: int) -> dict[str, Any]:
    """Of twelve seeds in a row each pair of a kind of borrowed server and of choices an operator has."""
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"newcomers": Newcomers.PRUDENT},
        {"fill": Fill.SUFFIX, "reserve_servers": 1, "reserve_slack_seconds": 2.0},
        {"newcomers": Newcomers.PRUDENT, "fill": Fill.SUFFIX, "change_slack_seconds": 1.0},
    )
    settings = PlannerSettings(slot_seconds=5.0, **choices[seed // 3 % len(choices)])
    return {"lends": seed % 3 > 0, "same_kind": seed % 3 == 2, "settings": settings}


def _live_through(
    rng: np.random.Generator, *, lends: bool, same_kind: bool, settings: PlannerSettings
) -> list[Decision]:
    """Some slots of a cluster's life, as the default policy decides them."""
    decisions = []
    policy = policy_named(DEFAULT_POLICY)
    servers = tuple(ServerSnapshot(f"own-{number}", 4) for number in range(2))
    if lends:
        servers += tuple(ServerSnapshot(f"lent-{n}", 4, on_loan=True, same_kind=same_kind) for n in range(2))
    known = tuple(_small_jobs_came().remembered().tolist())
    snapshot = Snapshot(0.0, 5.0, servers, (), settings=settings, memory=known)
    for slot in range(8):
        jobs = (
            *snapshot.jobs,
            *(_newcomer(rng, f"{slot}-{n}", snapshot.now) for n in range(rng.integers(3))),
        )
        snapshot = replace(snapshot, jobs=jobs)
        decision = policy.replan(snapshot) if slot % 2 else policy.admit(snapshot)
        decisions.append(decision)
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
        boundary = now + (0.0 if slot % 2 else 5.0)
        snapshot = replace(snapshot, now=now, next_slot_at=boundary, jobs=tuple(left), memory=decision.memory)
    return decisions


def _small_jobs_came() -> ExpectedDemand:
    """Small jobs for eight GPUs came in the last quarter of an hour, so that GPU time has a price."""
    demand = ExpectedDemand()
    for number in range(900):
        demand = demand.noted(number - 900.0, 0, 8.0, 20.0)
    return demand


def _decide_a_burst(rng: np.random.Generator) -> Decision:
    """Very many newcomers in one decision, some for large jobs."""
    servers = tuple(ServerSnapshot(f"own-{number}", 4) for number in range(16))
    jobs = tuple(_newcomer(rng, f"burst-{number}", 0.0) for number in range(200))
    jobs = tuple(replace(job, deadline_at=2.0 * job.deadline_at) for job in jobs)
    return policy_named(DEFAULT_POLICY).admit(
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
