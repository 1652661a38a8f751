"""Which edits of a package count as edits of its kernels."""

from __future__ import annotations

import ast

import pytest

from kernels import kernel_digest
from kernels.compiling import PACKAGES
from kernels.kernel_digest import source_digest

NUMBERS = '''"""Constants."""
import math
from enum import IntEnum
from typing import NamedTuple

BASE = 3
UNUSED = 4


class Kind(IntEnum):
    """Kinds."""
    SMALL = 1


class Pair(NamedTuple):
    """Two."""
    first: int
    second: int

    def swapped(self):
        return Pair(self.second, self.first)


def doubled(number):
    return 2 * number


def report(pair):
    """Tell."""
    return f"{pair} {UNUSED}"


FACTOR = doubled(BASE)
'''
LOOPS = '''"""Loops."""
from package.kernels import kernel
from package.numbers import FACTOR, Kind, report


@kernel
def scaled(pair):
    """Scale."""
    # Not by nothing.
    return pair.first * FACTOR + Kind.SMALL


def show(pair):
    return report(scaled(pair))
'''


def digest(numbers: str = NUMBERS, loops: str = LOOPS) -> str:
    return source_digest({"package/numbers.py": numbers.encode(), "package/loops.py": loops.encode()})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = doubled(BASE)", "FACTOR = doubled(BASE) + 1"),
        ("BASE = 3", "BASE = 5"),
        ("2 * number", "4 * number"),
        ("SMALL = 1", "SMALL = 2"),
        ("    first: int\n    second: int\n", "    second: int\n    first: int\n"),
        ("class Pair(NamedTuple)", "class Pair(Base)"),
    ],
)
def test_an_edit_of_what_a_kernel_uses_counts(old: str, new: str) -> None:
    assert old in NUMBERS
    assert digest(numbers=NUMBERS.replace(old, new)) != digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pair.first * FACTOR", "pair.second * FACTOR"),
        ("@kernel", "@leaf"),
        ("import FACTOR", "import BASE as FACTOR"),
    ],
)
def test_an_edit_of_a_kernel_or_its_import_counts(old: str, new: str) -> None:
    assert old in LOOPS
    assert digest(loops=LOOPS.replace(old, new)) != digest()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Constants."""', '"""Constants of the package."""\n# And a line more.\n'),
        ('    """Two."""\n', ""),
        ("UNUSED = 4", "UNUSED = 5"),
        ("import math\n", ""),
        ("Pair(self.second, self.first)", "Pair(*reversed(self))"),
        ('f"{pair} {UNUSED}"', 'f"{UNUSED}"'),
    ],
)
def test_an_edit_that_the_compiler_never_reads_does_not_count(old: str, new: str) -> None:
    assert old in NUMBERS
    assert digest(numbers=NUMBERS.replace(old, new)) == digest()


def test_docstrings_and_plain_functions_do_not_change_the_digest() -> None:
    edited = LOOPS.replace('    """Scale."""\n    # Not by nothing.\n', "").replace(
        "report(scaled(pair))", "1"
    )
    assert edited.count("\n") < LOOPS.count("\n")
    assert digest(loops=edited.replace(", report", "")) == digest()


def test_a_renamed_file_counts() -> None:
    assert source_digest({"a.py": LOOPS.encode()}) != source_digest({"b.py": LOOPS.encode()})


def test_the_digest_covers_every_kernel_and_class_of_the_core() -> None:
    trees = [ast.parse(source.read_bytes()) for folder in PACKAGES for source in folder.rglob("*.py")]
    complete = [_kernels_and_fields(tree) for tree in trees]
    kept = kernel_digest._Kept(kernel_digest._used_names(trees))
    assert [_kernels_and_fields(kept.visit(tree)) for tree in trees] == complete
    assert sum(map(len, complete)) > 600


def _kernels_and_fields(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found += [ast.dump(part) for part in node.body if isinstance(part, ast.AnnAssign)]
        if isinstance(node, ast.FunctionDef):
            decorators = {getattr(decorator, "id", "") for decorator in node.decorator_list}
            found += [ast.dump(node)] * bool(decorators & {"kernel", "leaf"})
    return found
