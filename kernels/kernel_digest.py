"""What the compiler reads of a package: the digest that names its machine code.

Numba compiles a kernel together with the kernels, constants and classes that it uses. `source_digest` covers
these and leaves out what cannot change machine code: docstrings, comments, line numbers, and those functions,
constants and imports that no kernel names, directly or through others. Names are compared across all
modules without regard to where they come from. A name that occurs twice therefore keeps too much, never too
little.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN_DECORATORS = {
    "abstractmethod", "cache", "cached_property", "classmethod", "lru_cache", "overload", "override",
    "property", "staticmethod", "wraps",
}  # fmt: skip


def source_digest(sources: Mapping[str, bytes]) -> str:
    """Digest of what the compiler reads of the sources, by the name of their file: 16 hexadecimal digits."""
    trees = {name: _without_docstrings(ast.parse(source)) for name, source in sorted(sources.items())}
    used = _used_names(list(trees.values()))
    digest = hashlib.sha256()
    for name, tree in trees.items():
        kept = _Kept(used).visit(tree)
        digest.update(f"\n{name}\n{ast.dump(kept)}".encode())
    return digest.hexdigest()[:16]


def _used_names(trees: list[ast.Module]) -> set[str]:
    """All names that machine code may depend on.

    Kernels name kernels, classes and constants. Code that runs at import, which makes the constants, may call
    plain functions too: these are in the result as ``name()``.
    """
    definitions: dict[str, list[ast.AST]] = {}
    waiting: list[ast.AST] = []
    for statement, owner in (pair for tree in trees for pair in _statements(tree)):
        names = _defined_names(statement, owner)
        if names is None:
            waiting.append(statement)
        for name in names or ():
            definitions.setdefault(name, []).append(statement)
    used: set[str] = set()
    while waiting:
        statement = waiting.pop()
        names_here = _names(statement)
        if not isinstance(statement, Function) or _is_plain(statement):
            names_here |= {_called(name) for name in names_here}
        else:
            # Decorators and defaults run at import.
            for part in (*statement.decorator_list, *statement.args.defaults, *statement.args.kw_defaults):
                names_here |= {_called(name) for name in _names(part)} if part is not None else set()
        for name in names_here - used:
            used.add(name)
            waiting += definitions.get(name, ())
    return used


def _called(name: str) -> str:
    return f"{name}()"


def _statements(
    tree: ast.Module | ast.ClassDef, owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.AST, ast.ClassDef | None]]:
    """The statements of a module, those within classes one by one with their class."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            for part in (*statement.bases, *statement.keywords, *statement.decorator_list):
                yield part, owner
            yield from _statements(statement, statement)
        else:
            yield statement, owner


def _defined_names(statement: ast.AST, owner: ast.ClassDef | None) -> list[str] | None:
    """The names that need the statement if they are used; None if it always counts."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if not _is_plain(statement):
                return None
            if not (name.startswith("__") and name.endswith("__")):
                return [_called(name)]
            # A base class may call such a method when the class is made, as enumerations do.
            return None if owner is None or owner.bases else [_called(owner.name)]
        case ast.Assign(targets=targets) if all(isinstance(target, ast.Name) for target in targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return None if any(alias.name == "*" for alias in names) else list(map(_bound_name, names))
    return None


def _is_plain(function: Function) -> bool:
    """Whether Python alone calls the function."""
    return all(_last_name(decorator) in _PLAIN_DECORATORS for decorator in function.decorator_list)


def _last_name(decorator: ast.expr) -> str:
    if isinstance(decorator, ast.Call):
        return _last_name(decorator.func)
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names(root: ast.AST) -> set[str]:
    """All names and attributes in the tree, and the first names of what it imports under others."""
    found = set()
    for node in ast.walk(root):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name, asname=str()):
                found.add(name.rpartition(".")[2])
    return found


class _Kept(ast.NodeTransformer):
    """Removes the definitions of names that are not used. It enters classes, but no functions."""

    def __init__(self, used: set[str]) -> None:
        self.used = used

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.ClassDef):
            owner = node if isinstance(node, ast.ClassDef) else None
            node.body = [statement for statement in node.body if self._keeps(statement, owner)]
            return super().generic_visit(node)
        return node

    def _keeps(self, statement: ast.stmt, owner: ast.ClassDef | None) -> bool:
        if owner is not None and not isinstance(statement, Function):
            # A kernel may read fields of a class that it never names.
            return True
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [
                alias for alias in statement.names if alias.name == "*" or _bound_name(alias) in self.used
            ]
            return bool(statement.names)
        names = _defined_names(statement, owner)
        return names is None or not self.used.isdisjoint(names)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """The module without statements that are a text and nothing else."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False
