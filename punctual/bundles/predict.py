"""Whether a class can be deployed: `predict(self, batch, model)`, read from its syntax tree."""

from __future__ import annotations

import ast

#: `predict` is called with this many positional arguments, including `self`.
ARGUMENTS = 3
MOST_SHOWN_CHARACTERS = 100


def predict_problem(node: ast.ClassDef) -> str | None:
    """Return the problem of a class's `predict`: empty if it fits, None if the class does not define it."""
    for statement in reversed(node.body):
        if isinstance(statement, ast.AsyncFunctionDef) and statement.name == "predict":
            return "it is a coroutine"
        if isinstance(statement, ast.FunctionDef) and statement.name == "predict":
            return "" if _fits(statement.args) else f"it is predict({_shown(statement.args)})"
    return None


def _fits(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    most = positional if arguments.vararg is None else ARGUMENTS
    return required <= ARGUMENTS <= most and None not in arguments.kw_defaults


def _shown(arguments: ast.arguments) -> str:
    text = ast.unparse(arguments)
    return text if len(text) <= MOST_SHOWN_CHARACTERS else f"{text[:MOST_SHOWN_CHARACTERS]}…"


def not_deployable(entry: str, problem: str) -> str:
    """Return a sentence on the problem of the class `module:Class`, and what would be right."""
    return f"A deployed class must define predict(self, batch, model). In {entry} {problem}."
