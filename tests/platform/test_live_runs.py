"""`make test-live` runs a failed test once more, alone, and records one that passed only then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import live

FLAKY = """
from pathlib import Path

import pytest

pytestmark = pytest.mark.live


@pytest.mark.parametrize("number", [1])
def test_passes_the_second_time(number):
    mark = Path(__file__).with_name("mark")
    first = not mark.exists()
    mark.touch()
    print("seen before" if not first else "new here")
    assert not first, "the first time fails"
"""
BROKEN = """
import pytest


@pytest.mark.live
def test_fails_always():
    assert 1 == 2


@pytest.mark.live
def test_passes():
    pass


def test_is_not_live():
    assert False
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with the same marker and its own record of flaky tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = live: a\n    slow: b\n    images: c\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(live, "FLAKY", tmp_path / "flaky.json")
    return tmp_path


def test_a_test_that_passes_alone_is_counted_as_flaky(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_flaky.py").write_text(FLAKY)
    for times in (1, 2):
        (project / "mark").unlink(missing_ok=True)
        assert live.main(["test_flaky.py"]) == 0
        counted = json.loads((project / "flaky.json").read_text())
        name = "test_flaky.py::test_passes_the_second_time[1]"
        assert counted[name]["times"] == times
        assert "the first time fails" in counted[name]["failure"]
    printed = capfd.readouterr().out
    assert printed.rstrip().endswith("1 passed, 0 failed, 0 skipped")
    assert f"FLAKY {name}" in printed
    summary = printed.rsplit(f"== flaky: {name}", 1)[1]
    assert "new here" in summary
    assert "seen before" in summary


def test_a_test_that_fails_twice_fails_the_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_broken.py").write_text(BROKEN)
    assert live.main(["test_broken.py"]) == 1
    printed = capfd.readouterr().out
    assert "FAILED test_broken.py::test_fails_always" in printed
    assert printed.rstrip().endswith("1 passed, 1 failed, 0 skipped")
    assert not (project / "flaky.json").exists()


def test_a_run_that_pytest_cannot_begin_fails(project: Path) -> None:
    assert live.main(["no_such_file.py"]) == 1
