"""The house is read from the top floor down: whoever is imported knows nothing of whom it serves."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
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
    assert "simulation.engine.world.world" in above["simulation.engine.run"], "imports are not read"
    TopologicalSorter(above).prepare()


def test_no_two_things_of_the_core_have_one_name() -> None:
    """Who searches for a term finds one thing; names that begin with an underscore belong to their file."""
    found = Counter(
        node.name
        for file in (PROJECT / "scheduling" / "core").rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    )
    assert found["Admission"] == 1, "the core's files are not read"
    assert [name for name, count in found.items() if count > 1] == []


def test_no_template_reads_a_mapping_by_its_methods() -> None:
    """A key of the method's name would stand before it: who chooses keys would break the page."""
    templates = list(PROJECT.glob("*/templates/**/*.html"))
    assert len(templates) > 20, "templates are not read"
    method = re.compile(r"\{[{%][^}]*\w\.(items|keys|values)\b")
    found = [file.name for file in templates if method.search(file.read_text())]
    assert found == [], "use the filter `pairs`"
