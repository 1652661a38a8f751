"""The lanes that `make test` runs beside each other: every test is in one of them, and none ends unheard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import lanes
from tests.lanes import COMPILATION, DATABASE, LANES, REST, TESTS, Lane, Run, command_of, together
from tests.plugins.embedded_servers import CLUSTER_VARIABLE


@pytest.fixture
def folders() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


PATHS = {lane.name: {Path(path) for path in lane.paths()} for lane in LANES}


def lanes_of(file: Path) -> list[str]:
    return [name for name, paths in PATHS.items() if paths & {file, *file.parents}]


def test_no_test_is_in_two_lanes_and_the_rest_leaves_out_what_others_have() -> None:
    for lane in LANES:
        for pattern in lane.tests:
            assert list(TESTS.glob(pattern)), f"{lane.name}: there is no {pattern}"
    ignored = {Path(option.removeprefix("--ignore=")) for option in command_of(REST, ["-x"])[5:]}
    for file in TESTS.rglob("test_*.py"):
        own = lanes_of(file)
        assert len(own) <= 1, f"{file.name} runs twice: {own}"
        assert bool(own) == bool(ignored & {file, *file.parents}), f"{file.name} is run by none, or by two"
    assert not lanes_of(TESTS / "recovery" / "test_store.py"), "the rest has some"


def prints(text: str, status: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({text!r}); raise SystemExit({status})")


def finish(run: Run) -> None:
    while run.go_on():
        pass


def test_a_lane_that_fails_is_named_and_the_others_run(
    folders: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        Lane("good", ("core",)): prints("3 passed in 1.0s"),
        Lane("bad", ("api",)): prints("1 failed, 2 passed in 1.0s", 1),
        Lane("style"): prints("a line is too long", 2),
    }
    run = Run(dict(commands), folders)
    finish(run)
    assert sorted(run.failed) == ["bad", "style"]
    assert together(run.closing) == "all lanes: 1 failed, 5 passed"
    told = capsys.readouterr().out
    assert "a line is too long" in told
    assert "style: exit 2" in told


def test_what_is_to_find_the_core_compiled_begins_when_it_is(folders: ExitStack, tmp_path: Path) -> None:
    begun, compiled = tmp_path / "begun", tmp_path / "compiled"
    waits = f"import os, time\nwhile not os.path.exists({str(begun)!r}): time.sleep(0.01)\n"
    commands = {
        COMPILATION: (sys.executable, "-c", f"{waits}open({str(compiled)!r}, 'x').close()"),
        Lane("core", ("core",)): (sys.executable, "-c", f"open({str(compiled)!r}).close()"),
        Lane("style", prepared=False): (sys.executable, "-c", f"open({str(begun)!r}, 'x').close()"),
    }
    run = Run(dict(commands), folders)
    finish(run)
    assert run.failed == []


def test_lanes_are_told_where_the_database_is_that_they_copy(folders: ExitStack) -> None:
    copies = f"import os; assert os.path.isdir(os.environ[{CLUSTER_VARIABLE!r}])"
    run = Run({DATABASE: prints("made"), Lane("core", ("core",)): (sys.executable, "-c", copies)}, folders)
    finish(run)
    assert run.failed == []
    failing = Run({DATABASE: prints("no room", 1), Lane("core"): prints("its own")}, folders)
    finish(failing)
    assert failing.failed == ["database"]
    assert CLUSTER_VARIABLE not in failing.environment


def most_computing(run: Run) -> int:
    most = 0
    while run.go_on():
        most = max(most, sum(not one.lane.by_the_clock for one in run.running))
    assert run.failed == []
    assert not run.commands
    return most


def test_only_so_many_compute_at_once_and_one_more_when_nothing_is_done_by_a_clock(
    folders: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_AT_ONCE", 1)
    done = tmp_path / "done"
    waits = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    beside = {
        Lane("clock", by_the_clock=True): (sys.executable, "-c", waits),
        **{Lane(name): prints(name) for name in "ab"},
        Lane("c"): (sys.executable, "-c", f"open({str(done)!r}, 'x').close()"),
    }
    assert most_computing(Run(dict(beside), folders)) == 1
    assert most_computing(Run({Lane(name): prints(name) for name in "abc"}, folders)) == 2
