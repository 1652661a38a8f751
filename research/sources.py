"""A digest of the program text that a run's result depends on, so that results of older programs are not
reused.

Only the modules that a policy imports count: stored results remain valid when another policy is changed or
added.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from pathlib import Path

from simulation.policies import policy_named

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("communication", "kernels", "moe", "recovery", "research", "scheduling", "simulation")
ENGINE = ("simulation.engine.run",)
NOT_FOLLOWED = frozenset(
    {
        "scheduling.policies",
        "simulation.baselines",
        "simulation.policies",
        "simulation.engine.checks.invariants",
        "simulation.engine.checks.shared_invariants",
    }
)
"""The registries import every policy, while the one that runs is given separately; invariant checks do not
affect results."""


@cache
def code_digest(policy: str, results: str) -> str:
    """Return the digest of engine, core, policy and ``results``, the module that defines the stored part of a
    run, as they are on disk. Raises ValueError for an unknown policy."""
    return modules_digest(*ENGINE, results, type(policy_named(policy)).__module__)


@cache
def modules_digest(*modules: str) -> str:
    """Return the digest of these modules and all of our modules that they import, as they are on disk."""
    digest = hashlib.sha256()
    for module in sorted(imported_by(*modules)):
        digest.update(module.encode() + b"\0" + _path(module).read_bytes())
    digest.update(f"python {sys.version_info[:2]}".encode())
    return digest.hexdigest()


def imported_by(*modules: str) -> set[str]:
    """Return these modules and all of our modules that they import, directly or not."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found and module not in NOT_FOLLOWED:
            found.add(module)
            waiting += _imports(module)
    return found


@cache
def _imports(module: str) -> tuple[str, ...]:
    found: list[str] = []
    for node in ast.walk(ast.parse(_path(module).read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # A name may be a module of the package or an object in it.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [name for name in names if name.partition(".")[0] in PACKAGES and _path(name).is_file()]
    return tuple(found)


def _path(module: str) -> Path:
    place = ROOT.joinpath(*module.split("."))
    package = place / "__init__.py"
    return package if package.is_file() else place.with_suffix(".py")
