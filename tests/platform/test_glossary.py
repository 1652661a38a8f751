"""Whoever knows a paper finds each of its steps by searching for the term."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|]+) \| (?:ElasticFlow|Lyra) [^|]+ \| `([^`]+\.py)`: `(\w+)` \|$", re.MULTILINE)
STEPS = ROW.findall((ROOT / "docs" / "glossary.md").read_text())


def test_there_are_twenty_steps() -> None:
    assert len({step for step, _, _ in STEPS}) == 20


@pytest.mark.parametrize(("step", "path", "name"), STEPS, ids=[step for step, _, _ in STEPS])
def test_a_step_is_found_by_its_term(step: str, path: str, name: str) -> None:
    source = (ROOT / path).read_text()
    defined = {
        node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert name in defined
    # The first paragraph of the file says it, so that whoever opens it knows where they are.
    opening = ast.get_docstring(ast.parse(source)) or ""
    says = re.compile(re.escape(step).replace(r"\ ", r"[\s_-]+"), re.IGNORECASE)
    assert says.search(opening), f"{path} does not say {step!r} where it begins"
