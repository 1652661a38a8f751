"""The house is read from the top floor down: whoever is imported knows nothing of whom it serves."""

from __future__ import annotations

import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).parents[2]


def test_no_modules_import_each_other_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports for types alone count as well; the sorter's error names the circle."""
    monkeypatch.setattr(sys, "path", [str(PROJECT), *sys.path])
    rooms = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    imports = grimp.build_graph(*rooms, exclude_type_checking_imports=False, cache_dir=None)
    above = {module: imports.find_modules_directly_imported_by(module) for module in imports.modules}
    assert "simulation.engine.world" in above["simulation.engine.run"], "imports are not read"
    TopologicalSorter(above).prepare()
