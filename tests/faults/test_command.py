"""`manage.py chaos`: no fault without the cluster's name, and errors that name the right usage."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from faults import on_a_cluster
from faults.management.commands import chaos
from faults.on_a_cluster import Before, ChaosRefusedError, lost
from faults.processes import Found, Process
from faults.schedule import Part, Target

WEB = Target(Part.WEB, "web")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def platform(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A platform of one process and one cluster, which is always calm."""
    own = Process.of(child.pid)
    assert own is not None
    found = {WEB: Found(WEB, (own,), (own,))}
    clusters = ["main"]

    def rows(sql: str, *parameters: Any) -> list[dict[str, Any]]:
        return [{"name": name} for name in clusters] if "from cluster_cluster" in sql else []

    for module in (chaos, on_a_cluster):
        monkeypatch.setattr(module, "find", lambda folders: found)
    monkeypatch.setattr(chaos, "database", lambda folders: rows)
    monkeypatch.setattr(on_a_cluster, "read_state", lambda folders: {"processes": {}})
    return clusters


def test_without_a_platform_the_command_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no platform runs on .*--data"):
        call_command("chaos", data=tmp_path)


@pytest.mark.parametrize("what", ["a file", "somebody else's"])
def test_an_invalid_data_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    data = tmp_path / "data"
    data.touch()
    if what == "somebody else's":

        def denied(folders: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(on_a_cluster, "find", denied)
    with pytest.raises(CommandError, match=r"cannot be read \((Not a directory|Permission denied)\)"):
        call_command("chaos", data=data, dry_run=True)


@pytest.mark.parametrize(
    ("option", "value"), [("seconds", 0.0), ("seconds", 1e9), ("wait", 0.0), ("seed", -1)]
)
def test_invalid_numbers_are_refused(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(CommandError, match=f"--{option}"):
        call_command("chaos", data=tmp_path, **{option: value})


def test_an_unknown_part_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"'moon': take some of .*PostgreSQL.*agent"):
        call_command("chaos", data=tmp_path, part=["moon"])


def test_a_dry_run_prints_the_schedule_and_does_nothing(platform, child, capsys) -> None:
    call_command("chaos", seconds=9.0, seed=3, dry_run=True)
    printed = capsys.readouterr().out
    assert "seed 3" in printed
    assert "web server web" in printed
    assert child.poll() is None


@pytest.mark.parametrize("name", [None, "another"])
def test_no_fault_is_injected_without_the_clusters_name(platform, child, name: str | None) -> None:
    with pytest.raises(CommandError, match="--yes-i-mean-this-cluster main"):
        call_command("chaos", seconds=1.0, seed=3, yes_i_mean_this_cluster=name)
    assert child.poll() is None


def test_a_platform_of_two_clusters_is_left_alone(platform, child) -> None:
    platform.append("other")
    with pytest.raises(CommandError, match="2 clusters"):
        call_command("chaos", seconds=1.0, seed=3, yes_i_mean_this_cluster="main")
    assert child.poll() is None


def test_with_the_clusters_name_faults_are_injected_and_judged(platform, child, capsys) -> None:
    call_command("chaos", seconds=1.0, seed=_that_kills(), yes_i_mean_this_cluster="main")
    assert child.wait(30) == -9
    assert "everything holds" in capsys.readouterr().out


def _that_kills() -> int:
    from faults.schedule import Kind, schedule

    return next(seed for seed in range(100) if [f.kind for f in schedule(seed, 1.0, [WEB])] == [Kind.KILL])


def job(state: str) -> dict[str, Any]:
    return {"id": "j", "name": "work", "state": state, "failure": None}


def test_vanished_and_failed_jobs_count_as_lost() -> None:
    before = Before({"j": job("running")}, frozenset())
    assert lost(before, [job("completed")]) == []
    assert lost(before, [job("cancelled")]) == []
    assert lost(before, [job("failed")])
    assert lost(before, [])


def test_the_platforms_database_must_be_reachable(tmp_path: Path) -> None:
    from launch.folders import Folders

    with pytest.raises(ChaosRefusedError, match="no platform"):
        on_a_cluster.database(Folders(tmp_path))
