"""Machine code of the decision core: never older than its sources, and there before the first decision waits
for it. Until it is there, the kernels give the same answers as they stand."""

from __future__ import annotations

import ast
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
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.core.registry import CPUDispatcher

from kernels import compiling
from kernels.compiling import (
    INTERPRET_VARIABLE,
    PACKAGES,
    leaf,
    machine_code_is_complete,
    mark_complete,
)
from kernels.interpreting import interpreted
from scheduling.core.elasticflow.expected_demand import ExpectedDemand
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
from workers.tasks.loaded_kernels import LoadedKernels

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own with one kernel, whose machine code is kept below ``tmp_path``."""
    monkeypatch.setattr(compiling, "_ROOT", tmp_path)
    monkeypatch.setattr(compiling, "_KEPT", tmp_path / "user" / "kernels-0")
    monkeypatch.setattr(compiling, "PACKAGES", (tmp_path / "project" / "small_kernels",))
    (tmp_path / "user" / "kernels-0").mkdir(parents=True)
    folder = tmp_path / "project" / "small_kernels"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "constants.py").write_text("FACTOR = 3\n")
    (folder / "loops.py").write_text(LOOPS)
    return folder


LOOPS = '''"""A kernel."""
from kernels.compiling import kernel
from small_kernels.constants import FACTOR


@kernel
def scaled(number: int) -> int:
    return number * FACTOR
'''


def _scaled(package: Path) -> tuple[int, int]:
    """What the kernel of the package makes of 7, and how often the compiler ran for it."""
    for name in [name for name in sys.modules if name.startswith("small_kernels")]:
        del sys.modules[name]
    compiling._version.cache_clear()
    compiling._LOADED.clear()
    importlib.invalidate_caches()
    with patch.object(sys, "path", [str(package.parent), *sys.path]):
        scaled = importlib.import_module("small_kernels.loops").scaled
    return scaled(7), sum(scaled.stats.cache_misses.values())


def test_edited_kernels_are_recompiled_and_others_are_kept(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outside the packages the digest is part of each kernel's file, so one folder holds all versions.
    monkeypatch.setattr(compiling, "PACKAGES", ())
    assert _scaled(package) == (21, 1)
    (package / "loops.py").write_text(
        LOOPS.replace('"""A kernel."""', '"""A kernel.\n\nAnd lines."""\n# More.')
    )
    assert _scaled(package) == (21, 0)
    (package / "constants.py").write_text("FACTOR = 10\n")
    assert _scaled(package) == (70, 1)
    (package / "loops.py").write_text(LOOPS.replace("FACTOR\n\n\n@", "FACTOR\n\n\n\n@").replace("* F", "+ F"))
    assert _scaled(package) == (17, 1)
    copied = Path(shutil.copytree(package.parent, package.parents[1] / "copied")) / package.name
    assert _scaled(copied) == (17, 0)


def test_damaged_machine_code_is_recompiled(package: Path) -> None:
    assert _scaled(package) == (21, 1)
    (kept,) = (package.parents[1] / "user" / "kernels-0").glob("small_kernels.loops.scaled-*")
    kept.write_bytes(kept.read_bytes()[:100])
    assert _scaled(package) == (21, 1)
    assert _scaled(package) == (21, 0)


def test_the_mark_is_valid_only_while_its_files_exist(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not machine_code_is_complete()
    _scaled(package)
    mark_complete()
    assert machine_code_is_complete()
    copied = Path(shutil.copytree(package, package.parents[1] / "copied" / package.name))
    monkeypatch.setattr(compiling, "PACKAGES", (copied,))
    assert machine_code_is_complete()
    (copied / "loops.py").write_text(LOOPS.replace("A kernel", "One kernel"))
    assert not machine_code_is_complete(), "callers may need it for other types"
    (copied / "loops.py").write_text(LOOPS)
    (kept,) = (package.parents[1] / "user" / "kernels-0").glob("small_kernels.loops.scaled-*")
    kept.unlink()
    assert not machine_code_is_complete()


def test_kernels_are_interpreted_only_if_allowed_and_not_compiled(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INTERPRET_VARIABLE, raising=False)
    assert not compiling._is_interpreted()
    monkeypatch.setenv(INTERPRET_VARIABLE, "1")
    assert compiling._is_interpreted()
    mark_complete()
    assert not compiling._is_interpreted()


@pytest.mark.parametrize("writable", ["configured", "cache", "tree"])
def test_machine_code_is_stored_in_the_first_writable_folder(
    writable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    places = {name: tmp_path / name if name == writable else blocked for name in ("configured", "cache")}
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places["configured"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(places["cache"]))
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "PACKAGES", ())
    folder = compiling._kept_folder()
    assert folder is not None
    expected = {"configured": "configured", "cache": "cache/punctual", "tree": "__pycache__"}[writable]
    assert folder.parent == tmp_path / expected
    assert compiling._kept_folder() == folder


def test_the_oldest_versions_of_machine_code_are_removed(tmp_path: Path) -> None:
    for age in range(5):
        (tmp_path / f"kernels-{age}").mkdir()
        os.utime(tmp_path / f"kernels-{age}", (1e9 - age, 1e9 - age))
    compiling._remove_oldest(tmp_path.glob("kernels-*"), beyond=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-0", "kernels-1"]


def test_external_kernels_use_only_the_packages_and_their_folder() -> None:
    names = {".".join(folder.relative_to(ROOT).parts) for folder in PACKAGES}
    outside = [
        source
        for folder in ("cluster", "communication", "moe", "recovery", "scheduling", "simulation", "workers")
        for source in (ROOT / folder).rglob("*.py")
        if _has_kernels(source) and not any(package in source.parents for package in PACKAGES)
    ]
    assert len(outside) > 2
    for source in outside:
        own = ".".join(source.parent.relative_to(ROOT).parts)
        foreign = {
            name: home
            for name, home in _imported_by_kernels(source).items()
            if (ROOT / home.partition(".")[0]).is_dir()
            and not f"{home}.".startswith((f"{own}.", *(f"{n}." for n in names)))
        }
        assert not foreign, source


def _imported_by_kernels(source: Path) -> dict[str, str]:
    """The names that kernels of the file import, with the modules that these come from."""
    tree = ast.parse(source.read_bytes())
    homes = {
        alias.asname or alias.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    used = {
        node.id
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.decorator_list
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
    }
    return {name: home for name, home in homes.items() if name in used}


def test_a_leaf_that_returns_or_makes_an_array_is_refused() -> None:
    """It borrows arrays: what it returned would be freed under its user (decision 0008)."""

    def returns(numbers: FloatArray) -> FloatArray:
        return numbers

    def makes(count: int) -> float:
        return float(np.zeros(count)[0])

    with pytest.raises(TypeError, match="numbers alone"):
        leaf(returns)
    with pytest.raises(TypingError):
        leaf(makes)(3)


def test_compiled_scenarios_both_keep_room_and_admit_jobs() -> None:
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
    told = json.loads(_run_here("tell_loaded('planner')"))
    assert told["loaded"] > 50
    assert not told["late"], "loaded only when a decision needed them"


def test_only_the_planners_worker_loads_kernels() -> None:
    def parent(queue: str) -> Any:
        return SimpleNamespace(
            app=SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from={queue})))
        )

    step = object.__new__(LoadedKernels)
    assert step.include_if(parent("planner"))
    assert not step.include_if(parent("control"))


def test_decisions_without_machine_code_are_the_same(tmp_path: Path) -> None:
    """In a process that shall not wait for the compiler, and in this one, whose kernels are compiled."""
    told = _run(tmp_path, "from tests.platform.test_compiling import tell_decisions; tell_decisions()")
    meanwhile = json.loads(told)
    assert meanwhile["interpreted"]
    assert sum(map(len, meanwhile["decisions"])) > 30
    assert meanwhile["decisions"] == _decisions()


def test_interpreted_kernels_convert_values_like_compiled_ones() -> None:
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
    with patch("kernels.compiling.machine_code_is_complete", return_value=True):
        app.Worker(queues=[queue], concurrency=1)
    loaded = _signatures()
    for seed in range(12):
        _live_through(np.random.default_rng(seed), **_kind_of_life(seed))
    _decide_a_burst(np.random.default_rng(0))
    late = [name for name, kinds in _signatures().items() if kinds != loaded.get(name, 0)]
    print(json.dumps({"loaded": sum(loaded.values()), "late": late}))


def tell_decisions() -> None:
    """For a process of its own: print what it decides."""
    from kernels.compiling import INTERPRETED

    print(json.dumps({"interpreted": INTERPRETED, "decisions": _decisions()}))


def _decisions() -> list[list[Any]]:
    # All choices of an operator, and all kinds of borrowed servers.
    found = [_live_through(np.random.default_rng(seed), **_kind_of_life(seed)) for seed in (0, 5, 7, 10)]
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
        f"{module}.{kernel.py_func.__name__}": len(kernel.signatures)
        for module in sorted(sys.modules)
        if module.startswith(tuple(".".join(folder.relative_to(ROOT).parts) for folder in PACKAGES))
        for kernel in _kernels_of(module)
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
