"""Before submitting: the guide's example runs on this machine as the guide says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.folders import PROJECT

GUIDE = (PROJECT / "docs" / "functions.md").read_text()


def try_function(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.runtime.try_function", str(source), *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    match = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert match is not None
    (tmp_path / "digits.py").write_text(match[1])
    return tmp_path / "digits.py"


@pytest.mark.live
def test_the_guides_example_prints_what_the_guide_shows(digits: Path) -> None:
    command = re.search(r"python -m workers\.runtime\.try_function digits\.py (.*)", GUIDE)
    assert command is not None
    # Fewer workers than the guide's, for speed: the last option wins.
    done = try_function(digits, *command[1].split(), "--workers", "1,2")
    assert done.returncode == 0, done.stderr
    assert "same samples in the same order: yes" in done.stdout


@pytest.mark.live
def test_a_run_too_short_to_hand_over_ends_without_a_traceback(digits: Path) -> None:
    """Preparing the successor takes longer than the whole training."""
    done = try_function(digits, "--batch-size", "32", "--iterations", "3", "--workers", "1,2")
    assert done.returncode == 0 or "give it more --iterations" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_numbers_give_one_line_of_error(digits: Path) -> None:
    done = try_function(digits, "--iterations", "0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
