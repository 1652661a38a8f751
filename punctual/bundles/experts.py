"""Finding mixture-of-experts layers in the syntax trees of a bundle. Nothing is imported or executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from punctual.bundles.source import resolve_name

#: Dotted names of the layer that users may write.
LAYER_NAMES = frozenset({"punctual.moe.MoELayer", "punctual.moe.layer.MoELayer"})
MOST_EXPERTS = 1 << 16
#: The place of `experts` among the layer's positional arguments.
_PLACE = 2


def read_expert_counts(modules: Mapping[str, tuple[str, bytes]]) -> tuple[int, ...] | None:
    """Return the numbers of experts of a bundle's layers, ascending.

    Empty if not all of them are literals. None if no module names `MoELayer`.

    Args:
        modules: `{module: (path, source)}`; all can be parsed.
    """
    counts: set[int] = set()
    references = known = 0
    for _, source in modules.values():
        if b"MoELayer" not in source and b"punctual.moe" not in source:
            continue
        tree = ast.parse(source.decode("utf-8-sig"))
        names = dict(_imported(tree))
        for node in ast.walk(tree):
            references += _is_layer(node, names)
            if isinstance(node, ast.Call) and _is_layer(node.func, names):
                count = _literal_count(node)
                known += count is not None
                counts |= set() if count is None else {count}
    if not references:
        return None
    return tuple(sorted(counts)) if references == known else ()


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield imported names with the dotted names that they refer to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_layer(node: ast.AST, names: Mapping[str, str]) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and resolve_name(node, names) in LAYER_NAMES


def _literal_count(call: ast.Call) -> int | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "experts"]
    value = named[0] if named else (call.args[_PLACE] if len(call.args) > _PLACE else None)
    if any(isinstance(argument, ast.Starred) for argument in call.args[: _PLACE + 1]):
        return None
    if not isinstance(value, ast.Constant) or type(value.value) is not int:
        return None
    return value.value if 1 <= value.value <= MOST_EXPERTS else None
