"""Pages and streams read through selectors and never query the database themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for room in ("dashboard", "streams") for path in (ROOT / room).rglob("*.py"))
#: The attributes that begin a query, send one, or change a row.
QUERIES = {
    "objects",
    "select_related",
    "prefetch_related",
    "values_list",
    "save",
    "refresh_from_db",
    "cursor",
    "raw",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_query_no_database(page: Path) -> None:
    asked = {node.attr for node in ast.walk(ast.parse(page.read_text())) if isinstance(node, ast.Attribute)}
    assert not asked & QUERIES
