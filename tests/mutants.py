"""`python -m tests.mutants draw|reach|run`: which randomly planted defects do the tests notice?

    python -m tests.mutants draw mutants.json --count 60 --seed 31
    python -m tests.mutants reach mutants.json reached.json
    python -m tests.mutants run mutants.json reached.json result.json

`draw` picks places in the product's syntax trees. `reach` runs the tests once, with a probe in the function
of each place, and lists the tests that ran it. `run` plants one defect after the other and runs the tests of
its folders that reach it, up to the first failure. Both work on a copy of the checkout, which `--copy` keeps.
A defect is identified by function, text and ordinal, so that the same ones can be planted in another version.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.compiling import INTERPRET_VARIABLE

PROJECT = Path(__file__).resolve().parent.parent
#: Test folders by the start of a product path; the first match counts.
PACKAGES = {
    "scheduling/core": ("core", "policies"),
    "scheduling/policies": ("policies", "core"),
    "simulation/baselines": ("policies",),
    "scheduling": ("control_plane", "api"),
    "simulation": ("simulation",),
    "lending": ("lending",),
    "communication": ("communication",),
    "emulated_links": ("links",),
    "kernels": ("platform", "core"),
    "moe": ("moe",),
    "recovery": ("recovery", "control_plane/recoveries"),
    "workers/agent": ("agent",),
    "workers/runtime": ("runtime",),
    "workers": ("workers", "control_plane"),
    "cluster": ("control_plane", "api"),
    "projects": ("api",),
    "punctual/cli": ("cli",),
    "punctual/client": ("cli",),
    "punctual": ("runtime", "agent", "cli"),
    "dashboard": ("dashboard",),
    "streams": ("streams",),
    "faults": ("faults",),
    "launch": ("platform",),
    "config": ("platform", "api"),
}
OPPOSITES: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {}
for _one, _other in OPPOSITES:
    COMPARISONS |= {_one: _other, _other: _one}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div}
KERNELS = {"kernel", "leaf"}
#: Self-contained, since workers run a staged copy of some packages where no other module can be imported.
PROBE = """
import contextlib, os, sys
test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
seen = sys.__dict__.setdefault("mutants_that_ran", set())
if (number, test) not in seen:
    seen.add((number, test))
    with contextlib.suppress(OSError), open(hits, "a") as file:
        file.write(f"{number} {test}\\n")
"""


@dataclass(frozen=True)
class Mutant:
    """A defect: the ``ordinal``-th place in the function ``scope`` of ``path``, and the text that replaces
    it."""

    path: str
    scope: str
    ordinal: int
    was: str
    becomes: str
    in_kernel: bool


@dataclass
class Place:
    """A place in a parsed file where a defect can be planted."""

    node: ast.AST
    replacement: str
    scope: str
    in_kernel: bool
    first_statement: ast.stmt | None


def places(tree: ast.Module) -> Iterator[Place]:
    """Return all places of a file in textual order."""

    def visit(node: ast.AST, scope: str, in_kernel: bool, first: ast.stmt | None) -> Iterator[Place]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list}
            body = node.body[1:] if ast.get_docstring(node) else node.body
            scope, in_kernel = f"{scope}.{node.name}", in_kernel or bool(names & KERNELS)
            children: Sequence[ast.AST] = body
            first = body[0] if body else None
        elif isinstance(node, ast.ClassDef):
            scope, children = f"{scope}.{node.name}", node.body
        else:
            if first is not None and (replacement := _mutated(node)) is not None:
                yield Place(node, replacement, scope, in_kernel, first)
            children = list(ast.iter_child_nodes(node))
        for child in children:
            yield from visit(child, scope, in_kernel, first)

    yield from visit(tree, "", False, None)


def _mutated(node: ast.AST) -> str | None:
    """Return the text of the defect, or None if this kind of node has none."""
    changed: Any = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in COMPARISONS:
        changed.ops[0] = COMPARISONS[type(changed.ops[0])]()
    elif isinstance(changed, ast.BinOp) and type(changed.op) in OPERATORS:
        changed.op = OPERATORS[type(changed.op)]()
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        changed = changed.operand
    elif isinstance(changed, ast.Return) and changed.value is not None:
        changed.value = ast.Constant(None)
    elif isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call):
        changed = ast.Pass()
    elif isinstance(node, ast.Constant) and isinstance(number := node.value, int | float):
        if isinstance(number, bool):
            return None
        changed = ast.Constant(number + 1)
    else:
        return None
    text = ast.unparse(changed)
    return text if isinstance(node, ast.stmt) else f"({text})"


def product_files(project: Path = PROJECT) -> list[Path]:
    """Return the product's files, without migrations."""
    found = (
        path
        for package in sorted({name.split("/")[0] for name in PACKAGES})
        for path in project.joinpath(package).rglob("*.py")
    )
    return sorted(path for path in found if "migrations" not in path.parts)


def draw(count: int, seed: int) -> list[Mutant]:
    """Return ``count`` defects, drawn uniformly from all places of the product."""
    found = []
    for path in product_files():
        ordinals: dict[str, int] = {}
        for place in places(ast.parse(path.read_text())):
            ordinal = ordinals[place.scope] = ordinals.get(place.scope, -1) + 1
            name = path.relative_to(PROJECT).as_posix()
            found.append(
                Mutant(
                    name, place.scope, ordinal, ast.unparse(place.node), place.replacement, place.in_kernel
                )
            )
    return random.Random(seed).sample(found, count)


def find(mutant: Mutant, text: str) -> Place | None:
    """Return the place in this version of the file, or None if it is gone."""
    same = [place for place in places(ast.parse(text)) if place.scope == mutant.scope]
    near = sorted(range(len(same)), key=lambda ordinal: abs(ordinal - mutant.ordinal))
    return next((same[ordinal] for ordinal in near if ast.unparse(same[ordinal].node) == mutant.was), None)


def planted(mutant: Mutant, text: str) -> str | None:
    """Return the file's text with the defect, or None if its place is gone."""
    place = find(mutant, text)
    if place is None:
        return None
    node = place.node
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    whole = text.encode()
    return (whole[:begin] + mutant.becomes.encode() + whole[end:]).decode()


def probed(numbers: dict[int, Mutant], text: str, hits: Path) -> str:
    """Return the file's text with a probe at the start of each mutant's function. Kernels get none."""
    lines = text.splitlines(keepends=True)
    wanted: dict[int, list[int]] = {}
    for number, mutant in numbers.items():
        place = None if mutant.in_kernel else find(mutant, text)
        if place is not None and place.first_statement is not None:
            wanted.setdefault(place.first_statement.lineno, []).append(number)
    for line in sorted(wanted, reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        names = [{"number": number, "hits": str(hits)} for number in wanted[line]]
        lines[line - 1 : line - 1] = [f"{indent}exec({PROBE!r}, {each!r})\n" for each in names]
    return "".join(lines)


@contextlib.contextmanager
def copied_checkout(kept: Path | None) -> Iterator[Path]:
    """Yield a copy of the tree that uses the same environment: ``kept``, which is created if missing, or a
    temporary one."""
    with tempfile.TemporaryDirectory(prefix="punctual-mutants-") as folder:
        copied = kept or Path(folder) / "punctual"
        if not copied.exists():
            left_out = shutil.ignore_patterns(".venv", ".tool", "data", ".hypothesis")
            shutil.copytree(PROJECT, copied, ignore=left_out)
            (copied / ".venv").symlink_to((PROJECT / ".venv").resolve())
        Path(folder).chmod(0o755)
        yield copied


def package_tests(mutant: Mutant) -> list[str]:
    """Return the test folders of the mutant's package."""
    folders = next(folders for start, folders in PACKAGES.items() if mutant.path.startswith(start + "/"))
    return [f"tests/{folder}" for folder in folders]


def reach(mutants: Sequence[Mutant], lanes: int, kept: Path | None) -> dict[str, list[str]]:
    """Return the node ids of the tests that run each mutant's function, in this process or in children; the
    folders of its package if a process ran it whose test is unknown."""
    with copied_checkout(kept) as copied, tempfile.TemporaryDirectory(prefix="punctual-hits-") as folder:
        Path(folder).chmod(0o755)
        hits = Path(folder) / "hits"
        hits.touch()
        hits.chmod(0o666)
        originals = {name: (copied / name).read_text() for name in {mutant.path for mutant in mutants}}
        for name, text in originals.items():
            own = {number: mutant for number, mutant in enumerate(mutants) if mutant.path == name}
            (copied / name).write_text(probed(own, text, hits))
        folders = sorted({folder for mutant in mutants for folder in package_tests(mutant)})
        command = [sys.executable, "-m", "pytest", "-q", *(["-n", str(lanes)] if lanes else []), *folders]
        subprocess.run(command, cwd=copied, check=False, env={**os.environ, "PYTHONPATH": str(copied)})
        for name, text in originals.items():
            (copied / name).write_text(text)
        found: dict[str, set[str]] = {}
        for line in hits.read_text().splitlines():
            number, _, name = line.partition(" ")
            found.setdefault(number, set()).update([name] if name else package_tests(mutants[int(number)]))
    return {number: sorted(names) for number, names in found.items()}


def is_killed(mutant: Mutant, tests: Sequence[str], copied: Path) -> bool | None:
    """Return whether one of the tests fails with the defect, or None if its place is gone."""
    file = copied / mutant.path
    text = file.read_text()
    changed = planted(mutant, text)
    if changed is None:
        return None
    file.write_text(changed)
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=300", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copied)}
        if mutant.in_kernel:
            environment[INTERPRET_VARIABLE] = "1"
        done = subprocess.run(command, cwd=copied, check=False, env=environment, stdout=subprocess.DEVNULL)
        return done.returncode != 0
    finally:
        file.write_text(text)


def collected(folders: Sequence[str], copied: Path) -> set[str]:
    """Return the node ids of all tests in these folders."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *folders]
    environment = {**os.environ, "PYTHONPATH": str(copied)}
    done = subprocess.run(command, cwd=copied, check=True, env=environment, capture_output=True, text=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def run(
    mutants: Sequence[Mutant], reached: dict[str, list[str]], kept: Path | None
) -> list[dict[str, object]]:
    """Return each mutant with its result: killed, survived, unreached or gone. Tests that this version lacks
    are left out: pytest fails on an unknown node id, which is no defect found."""
    results = []
    with copied_checkout(kept) as copied:
        existing = collected(
            sorted({folder for mutant in mutants for folder in package_tests(mutant)}), copied
        )
        for number, mutant in enumerate(mutants):
            folders = package_tests(mutant)
            own = [
                name
                for name in reached.get(str(number), ())
                if name in {*existing, *folders}
                and f"{name}/".startswith(tuple(f"{folder}/" for folder in folders))
            ]
            tests = folders if mutant.in_kernel or set(own) & set(folders) else own
            killed = is_killed(mutant, tests, copied) if tests else False
            outcome = (
                "gone" if killed is None else "killed" if killed else "survived" if tests else "unreached"
            )
            print(
                f"{number} {outcome} {mutant.path}{mutant.scope}: {mutant.was} -> {mutant.becomes}",
                flush=True,
            )
            results.append({**asdict(mutant), "outcome": outcome, "tests": len(tests)})
    return results


def main(arguments: Sequence[str]) -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("command", choices=("draw", "reach", "run"))
    parser.add_argument("files", nargs="+", type=Path, help="mutants, then reached tests, then results")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--lanes", type=int, default=os.cpu_count())
    parser.add_argument("--copy", type=Path, help="keep the copy of the checkout in this folder")
    asked = parser.parse_args(arguments)
    if asked.command == "draw":
        asked.files[0].write_text(
            json.dumps([asdict(one) for one in draw(asked.count, asked.seed)], indent=1)
        )
        return 0
    mutants = [Mutant(**entry) for entry in json.loads(asked.files[0].read_text())]
    if asked.command == "reach":
        asked.files[1].write_text(json.dumps(reach(mutants, asked.lanes, asked.copy), indent=1))
        return 0
    results = run(mutants, json.loads(asked.files[1].read_text()), asked.copy)
    asked.files[2].write_text(json.dumps(results, indent=1))
    killed, alive = (sum(one["outcome"] == what for one in results) for what in ("killed", "survived"))
    print(f"{killed} killed, {alive} survived, {len(results) - killed - alive} unreached or gone")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
