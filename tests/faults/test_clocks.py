"""Clocks jump if a library permits it, and without one the reason is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults.clocks import VARIABLE, Clocks, NoClocksError, find_library
from faults.injecting import Means, carry_out
from faults.schedule import Fault, Kind, Part, Target

CLOCK = Target(Part.CLOCK, "web")


def read(file: Path) -> float:
    return float(file.read_text())


def test_jumps_of_one_clock_add_up_and_each_ends_by_itself(tmp_path: Path) -> None:
    clocks = Clocks(Path("/library"), tmp_path)
    file = Path(clocks.environment("web")["FAKETIME_TIMESTAMP_FILE"])
    clocks.environment("beat")
    assert read(file) == 0.0
    back = clocks.turn(["web"], 3600.0)
    right = clocks.turn(["web", "beat"], -5.0)
    assert (read(file), clocks.wrong_by("beat")) == (3595.0, -5.0)
    back()
    assert read(file) == -5.0
    right()
    assert (read(file), clocks.wrong_by("beat")) == (0.0, 0.0)


def test_a_clock_is_restored_when_its_fault_ends(tmp_path: Path) -> None:
    clocks = Clocks(Path("/library"), tmp_path)
    file = Path(clocks.environment("web")["FAKETIME_TIMESTAMP_FILE"])
    wrong = []
    means = Means(find=dict, clocks={CLOCK: lambda seconds: clocks.turn(["web"], seconds)})
    fault = Fault(0.0, Kind.JUMP, CLOCK, 0.05, -60.0)
    (deed,) = carry_out([fault], means, say=lambda text: wrong.append(read(file)))
    assert wrong == [-60.0]
    assert read(file) == 0.0
    assert deed.ended_at is not None


def test_an_unusable_clock_library_is_reported_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(NoClocksError, match="no such file"):
        find_library({VARIABLE: str(tmp_path / "none.so")})


def test_only_the_wall_clock_of_the_process_jumps(tmp_path: Path) -> None:
    try:
        library = find_library()
    except NoClocksError as error:
        pytest.skip(str(error))
    clocks = Clocks(library, tmp_path)
    environment = clocks.environment("web")
    clocks.turn(["web"], -7200.0)
    code = "import time; print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    ours = subprocess.check_output([sys.executable, "-c", code], text=True)
    theirs = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    wall, monotonic, boot = (float(b) - float(a) for a, b in zip(ours.split(), theirs.split(), strict=True))
    assert -7200.0 <= wall < -7100.0
    assert 0.0 <= monotonic < 100.0
    assert 0.0 <= boot < 100.0
