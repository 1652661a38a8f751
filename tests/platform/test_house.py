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
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    packages = settings["tool"]["importlinter"]["root_packages"]
    imports = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    above = {module: imports.find_modules_directly_imported_by(module) for module in imports.modules}
    assert "simulation.engine.world.world" in above["simulation.engine.run"], "imports are not read"
    TopologicalSorter(above).prepare()


def test_all_packages_stand_in_one_contract() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in settings["contracts"] if c["name"].startswith("All packages"))
    assert sorted(package for layer in layers for package in layer.split(" | ")) == sorted(
        settings["root_packages"]
    )


def test_no_two_things_of_scheduling_have_one_name() -> None:
    """A search for a term finds one thing; names that begin with an underscore belong to their file.

    Some rows are also a type of the pure core, and services convert one to the other.
    """
    found = Counter(
        node.name
        for file in (PROJECT / "scheduling").rglob("*.py")
        if "migrations" not in file.parts and "commands" not in file.parts
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    )
    assert found["Admission"] == 1, "the files are not read"
    twice = {name for name, count in found.items() if count > 1}
    assert twice == {"Decision", "ScalingCurve", "ServiceClass"}


def test_no_template_reads_a_mapping_by_its_methods() -> None:
    """A key of the method's name would stand before it: who chooses keys would break the page."""
    templates = list(PROJECT.glob("*/templates/**/*.html"))
    assert len(templates) > 20, "templates are not read"
    method = re.compile(r"\{[{%][^}]*\w\.(items|keys|values)\b")
    found = [file.name for file in templates if method.search(file.read_text())]
    assert found == [], "use the filter `pairs`"


_OF_QUERYSETS = {
    "aggregate", "alias", "all", "annotate", "bulk_create", "bulk_update", "count", "create", "defer",
    "delete", "distinct", "earliest", "exclude", "exists", "filter", "first", "get_or_create", "in_bulk",
    "iterator", "last", "latest", "only", "order_by", "prefetch_related", "refresh_from_db", "save",
    "select_for_update", "select_related", "union", "update_or_create", "using", "values_list",
}  # fmt: skip


def _queries(source: str) -> list[str]:
    """Return the parts of a file that query a model: managers, and calls of querysets' methods.

    `values`, `update` and `get` are also methods of mappings, but they need a manager or a queryset. A view's
    `queryset = Model.objects.none()` only names its model for the API's description.
    """
    tree = ast.parse(source)
    declared = {
        statement.value.func.value
        for view in ast.walk(tree)
        if isinstance(view, ast.ClassDef)
        for statement in view.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == "none"
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in ("objects", "_default_manager", "_base_manager") and node not in declared:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # `names.count(name)` is of a list.
            if node.func.attr in _OF_QUERYSETS and not (node.func.attr == "count" and node.args):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Name) and node.id in ("get_object_or_404", "get_list_or_404"):
            found.append(node.id)
    return found


@pytest.mark.parametrize(
    "planted",
    [
        "rows = Job.objects.filter(pk=1)",
        "row = Job.objects.get(pk=1)",
        "found = job.events.all()",
        "found = jobs_visible_to(user).order_by('pk')",
        "number = job.events.count()",
        "row = get_object_or_404(Job, pk=1)",
        "class View:\n    rows = Job.objects.all()",
        "Job._default_manager.update(state='x')",
        "job.save()",
    ],
)
def test_queries_are_found(planted: str) -> None:
    assert _queries(planted) != []


def test_api_and_pages_query_no_models() -> None:
    """Selectors read and services write, so a query that many callers need is written once."""
    folders = [*PROJECT.glob("*/api"), PROJECT / "dashboard", PROJECT / "scheduling" / "agents"]
    files = [file for folder in folders if folder.parent.name != "tests" for file in folder.rglob("*.py")]
    assert len(files) > 100, "files are not read"
    found = {str(file.relative_to(PROJECT)): _queries(file.read_text()) for file in files}
    assert {name: queries for name, queries in found.items() if queries} == {}


def test_test_names_have_at_most_65_characters() -> None:
    files = (PROJECT / "tests").rglob("*.py")
    names = re.findall(r"def (test_\w+)", "\n".join(file.read_text() for file in files))
    assert len(names) > 1000, "files are not read"
    assert [name for name in names if len(name) > 65] == []
