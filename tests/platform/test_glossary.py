"""Each step of a paper can be found by searching for its term."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Rows of ElasticFlow and Lyra, whose terms are searched for.
ROW = re.compile(r"^\| ([^|]+) \| (?:ElasticFlow|Lyra) [^|]+ \| `([^`]+\.py)`: `(\w+)` \|$", re.MULTILINE)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
STEPS = ROW.findall(GLOSSARY)
#: The packages that implement the papers.
PACKAGES = ("scheduling/core", "lending")
#: A reader checks this many opening paragraphs within a minute.
MOST_OPENINGS = 10


def first_paragraph(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]


OPENINGS = {path: first_paragraph(path) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def test_each_row_of_the_table_is_read() -> None:
    """A row that `ROW` does not match would not be checked."""
    table = GLOSSARY.partition("| step | paper | where |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = table.strip().splitlines()
    assert rows
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [step for step, _, _ in STEPS]


#: Rows of all papers: step, paper, path, name.
ALL_STEPS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([^`]+\.py)`: `(\w+)` \|$", GLOSSARY, re.MULTILINE)
SYSTEMS = (
    "ElasticFlow",
    "Lyra",
    "Gemini",
    "Zen",
    "Espresso",
    "Cupcake",
    "Lina",
    "MoESys",
    "adaptive gating",
)
#: With fewer rows an algorithm of a paper would be missing.
LEAST_STEPS = 5


def defined_names(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_steps_of_each_system_have_their_files(system: str) -> None:
    steps = [row for row in ALL_STEPS if row[1].startswith(system)]
    assert len(steps) >= LEAST_STEPS
    for step, _, path, name in steps:
        assert (ROOT / path).is_file(), f"{step}: {path} does not exist"
        assert name in defined_names(ROOT / path), f"{step}: {path} does not define {name}"


@pytest.mark.parametrize(("step", "path", "name"), STEPS, ids=[step for step, _, _ in STEPS])
def test_a_step_is_found_by_its_term(step: str, path: str, name: str) -> None:
    assert name in defined_names(ROOT / path)
    says = re.compile(re.escape(step).replace(r"\ ", r"[\s_-]+"), re.IGNORECASE)
    paths = [each for each, opening in OPENINGS.items() if says.search(opening)]
    assert ROOT / path in paths, f"{path} does not say {step!r} where it begins"
    assert len(paths) <= MOST_OPENINGS, f"so many say {step!r} that nobody knows which it is: {paths}"
