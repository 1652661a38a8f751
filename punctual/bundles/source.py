"""Finding the training function in the syntax tree of a bundle's modules. Nothing is imported or executed."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from punctual.bundles.errors import BundleError
from punctual.bundles.predict import predict_problem
from punctual.names import name_problem, shown
from punctual.protocol.limits import MOST_WORKERS
from punctual.protocol.staged import reserved_because

#: Dotted names of the base class that users may write.
BASE_NAMES = frozenset({"punctual.TrainingFunction", "punctual.function.TrainingFunction"})
REQUIRED_METHODS = ("init_model", "init_dataset", "init_optimizer", "train")
MAXIMUM_ENTRY_CHARACTERS = 200
MAXIMUM_SOURCE_BYTES = 2 * 1024 * 1024
#: The base class's default, for functions that do not declare it.
DEFAULT_SPEED_NEUTRAL = ("learning_rate",)
MAXIMUM_DESCRIPTION_CHARACTERS = 2000
MOST_WORKER_COUNTS = 32
MOST_SPEED_NEUTRAL = 64
"""Limit of speed-neutral names, which are read with every job of the function."""
MAXIMUM_NAME_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class without its syntax tree, which takes a hundred times the memory of its source.

    ``bases``: dotted names with imports resolved. ``speed_neutral``: the assigned names, None if they are not
    literals. ``speed_neutral_line``: line of the assignment, None without one. ``worker_counts`` and its line
    likewise. ``predict_problem``: of the class's own `predict`.
    """

    #: Dotted name of its module.
    module: str
    name: str
    bases: tuple[str, ...]
    #: Names of its own methods.
    methods: frozenset[str]
    #: Its docstring.
    description: str
    speed_neutral: tuple[str, ...] | None
    speed_neutral_line: int | None
    worker_counts: tuple[int, ...] | None
    worker_counts_line: int | None
    predict_problem: str | None

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class FunctionClass:
    """The class to train. ``predict_problem``: why it cannot be deployed; empty if it can."""

    #: `module:Class`.
    entry: str
    #: The class's docstring.
    description: str
    #: Hyperparameters that do not change speed or memory.
    speed_neutral: tuple[str, ...]
    #: Declared numbers of workers; empty without a declaration.
    worker_counts: tuple[int, ...]
    predict_problem: str
    #: Numbers of experts of its layers (`read_expert_counts`).
    experts: tuple[int, ...] | None = None


def module_name(path: str) -> str:
    """Return the dotted module of a file: ``model/layers.py`` is ``model.layers``, ``model/__init__.py`` is
    ``model``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def lone_module_name(filename: str) -> str:
    """Return the module of a file that is uploaded alone. It may have any name, so invalid characters become
    ``_``."""
    stem = (
        re.sub(r"\W", "_", re.split(r"[/\\]", filename)[-1].removesuffix(".py"), flags=re.ASCII)[:100]
        or "function"
    )
    return f"_{stem}" if stem[0].isdigit() or keyword.iskeyword(stem) else stem


def parse_modules(modules: Mapping[str, tuple[str, bytes]]) -> dict[str, ClassInfo]:
    """Return all top-level classes by dotted name, from ``{module: (path, source)}``.

    Raises:
        BundleError: a source is not UTF-8, or not Python (with line and column).
    """
    classes: dict[str, ClassInfo] = {}
    for module, (path, source) in modules.items():
        hidden = reserved_because(module.split(".")[0])
        if hidden is not None:
            raise BundleError("reserved_name", f"{path} would hide {hidden}; give it another name.")
        tree = _parse(path, source)
        if not importable(module):
            continue  # a script next to the function
        for info in _classes(module, tree, is_package=path.endswith("__init__.py")):
            classes[info.dotted] = info
    return classes


def importable(module: str) -> bool:
    """Whether ``import`` accepts the module's name."""
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split("."))


def _parse(path: str, source: bytes) -> ast.Module:
    if len(source) > MAXIMUM_SOURCE_BYTES:
        raise BundleError(
            "too_large_source", f"{path} is larger than {MAXIMUM_SOURCE_BYTES} bytes of source."
        )
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BundleError("not_utf8", f"{path} is not UTF-8 text (byte {error.start}).") from error
    try:
        return _parsed(text, path)
    except SyntaxError as error:
        where = f"line {error.lineno}, column {error.offset}" if error.lineno else "unknown line"
        raise BundleError("syntax_error", f"{path}, {where}: {error.msg}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        # The parser raises MemoryError for source that is nested too deeply.
        raise BundleError(
            "syntax_error", f"{path} cannot be read as Python: {str(error) or 'nested too deeply'}."
        ) from error


def _parsed(text: str, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, filename=path)


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under a top-level `if` or `try`."""
    waiting = deque(body)  # not recursive, because a long chain of `elif` is nested as deeply
    while waiting:
        statement = waiting.popleft()
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            handlers = [inner for handler in getattr(statement, "handlers", ()) for inner in handler.body]
            waiting.extendleft(reversed([*statement.body, *handlers, *statement.orelse]))


def _classes(module: str, tree: ast.Module, *, is_package: bool) -> Iterator[ClassInfo]:
    names: dict[str, str] = {}
    for statement in _top_level(tree.body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(statement, ast.ImportFrom):
            origin = _origin(module, statement, is_package=is_package)
            for alias in statement.names:
                names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(statement, ast.ClassDef):
            bases = tuple(resolve_name(base, names) for base in statement.bases)
            methods = frozenset(_defined(statement))
            names[statement.name] = f"{module}.{statement.name}"
            description = _storable(ast.get_docstring(statement) or "")[:MAXIMUM_DESCRIPTION_CHARACTERS]
            yield ClassInfo(
                module, statement.name, bases, methods, description, *_speed_neutral_of(statement),
                *_worker_counts_of(statement), predict_problem(statement),
            )  # fmt: skip


def _origin(module: str, statement: ast.ImportFrom, *, is_package: bool) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    kept = len(parts) - statement.level + (1 if is_package else 0)
    return ".".join([*parts[: max(0, kept)], *([statement.module] if statement.module else [])])


def resolve_name(base: ast.expr, names: Mapping[str, str]) -> str:
    """Return the dotted name of a base or an attribute, with imports resolved."""
    parts: list[str] = []
    node = base.value if isinstance(base, ast.Subscript) else base
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return "?"
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _defined(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


# --- choosing the class -------------------------------------------------------------------------------------


def find_function(classes: Mapping[str, ClassInfo], entry: str | None) -> FunctionClass:
    """Return the class named by ``entry``, or the only one that inherits from ``TrainingFunction``.

    Raises:
        BundleError: there is none, there are several, or methods are missing.
    """
    functions = {name: info for name, info in classes.items() if _is_function(info, classes)}
    chosen = _named(functions, classes, entry) if entry else _only(functions)
    _check_methods(chosen, classes)
    chosen_entry = f"{chosen.module}:{chosen.name}"
    if len(chosen_entry) > MAXIMUM_ENTRY_CHARACTERS:
        raise BundleError(
            "entry", f"The entry {chosen_entry[:80]}… is longer than {MAXIMUM_ENTRY_CHARACTERS} characters."
        )
    return FunctionClass(
        entry=chosen_entry,
        description=chosen.description,
        speed_neutral=_speed_neutral(chosen, classes),
        worker_counts=_worker_counts(chosen, classes),
        predict_problem=_predict_problem(chosen, classes),
    )


def _storable(text: str) -> str:
    """Replace characters that databases cannot store and people should not see."""
    return shown(text, line_breaks=True)


def _ancestors(info: ClassInfo, classes: Mapping[str, ClassInfo]) -> Iterator[ClassInfo]:
    """Yield the class and its bases in the bundle, nearest first."""
    seen: set[str] = set()
    waiting = [info]
    while waiting:
        current = waiting.pop(0)
        if current.dotted in seen:
            continue
        seen.add(current.dotted)
        yield current
        waiting += [classes[base] for base in current.bases if base in classes]


def _is_function(info: ClassInfo, classes: Mapping[str, ClassInfo]) -> bool:
    return any(base in BASE_NAMES for ancestor in _ancestors(info, classes) for base in ancestor.bases)


def _named(functions: Mapping[str, ClassInfo], classes: Mapping[str, ClassInfo], entry: str) -> ClassInfo:
    module, colon, name = entry.partition(":")
    if not (colon and name.isidentifier() and importable(module)):
        raise BundleError("entry", f"'{entry[:80]}' is not an entry; write module:Class.", field="entry")
    dotted = f"{module}.{name}"
    if dotted in functions:
        return functions[dotted]
    if dotted in classes:
        raise BundleError(
            "missing_class",
            f"{name} in {module} does not inherit from punctual.TrainingFunction.",
            field="entry",
        )
    known = ", ".join(sorted(f"{info.module}:{info.name}" for info in functions.values())[:10])
    raise BundleError(
        "missing_class", f"There is no class {entry} in the bundle (found: {known or 'none'}).", field="entry"
    )


def _only(functions: Mapping[str, ClassInfo]) -> ClassInfo:
    inherited_from = {base for info in functions.values() for base in info.bases}
    leaves = [info for name, info in functions.items() if name not in inherited_from]
    if not leaves:
        raise BundleError(
            "missing_class",
            "No class inherits from TrainingFunction; write `from punctual import TrainingFunction` and "
            "subclass it.",
        )
    if len(leaves) > 1:
        names = ", ".join(sorted(f"{info.module}:{info.name}" for info in leaves)[:10])
        raise BundleError(
            "entry_needed", f"Several classes could be meant: {names}. Name one as `entry`.", field="entry"
        )
    return leaves[0]


def _check_methods(chosen: ClassInfo, classes: Mapping[str, ClassInfo]) -> None:
    ancestors = list(_ancestors(chosen, classes))
    if _has_unknown_base(ancestors, classes):
        return  # a base from a library may define them
    defined = {name for ancestor in ancestors for name in ancestor.methods}
    missing = [name for name in REQUIRED_METHODS if name not in defined]
    if missing:
        raise BundleError(
            "missing_methods", f"Class {chosen.name} in {chosen.module} lacks {', '.join(missing)}."
        )


def _has_unknown_base(ancestors: Iterable[ClassInfo], classes: Mapping[str, ClassInfo]) -> bool:
    bases = {base for ancestor in ancestors for base in ancestor.bases}
    return any(
        base not in BASE_NAMES and base not in classes and base not in {"object", "ABC", "abc.ABC"}
        for base in bases
    )


def _predict_problem(chosen: ClassInfo, classes: Mapping[str, ClassInfo]) -> str:
    ancestors = list(_ancestors(chosen, classes))
    for ancestor in ancestors:
        if ancestor.predict_problem is not None:
            return ancestor.predict_problem
    return "" if _has_unknown_base(ancestors, classes) else "it is not defined"


def _speed_neutral(chosen: ClassInfo, classes: Mapping[str, ClassInfo]) -> tuple[str, ...]:
    for ancestor in _ancestors(chosen, classes):
        if ancestor.speed_neutral_line is None:
            continue
        if ancestor.speed_neutral is None:
            raise BundleError(
                "speed_neutral",
                f"{ancestor.module}, line {ancestor.speed_neutral_line}: speed_neutral must be a literal set "
                f"of at most {MOST_SPEED_NEUTRAL} names, of {MAXIMUM_NAME_CHARACTERS} visible characters at "
                'most, such as {"learning_rate"}: it is read without running the file.',
            )
        return ancestor.speed_neutral
    return DEFAULT_SPEED_NEUTRAL


def _speed_neutral_of(node: ast.ClassDef) -> tuple[tuple[str, ...] | None, int | None]:
    """Return ``speed_neutral`` and ``speed_neutral_line`` of :class:`ClassInfo`."""
    for statement in node.body:
        value = _assigned(statement, "speed_neutral")
        if value is not None:
            return _literal_strings(value), value.lineno
    return None, None


def _worker_counts(chosen: ClassInfo, classes: Mapping[str, ClassInfo]) -> tuple[int, ...]:
    for ancestor in _ancestors(chosen, classes):
        if ancestor.worker_counts_line is None:
            continue
        if ancestor.worker_counts is None:
            raise BundleError(
                "worker_counts",
                f"{ancestor.module}, line {ancestor.worker_counts_line}: worker_counts must be a literal set "
                f"of at most {MOST_WORKER_COUNTS} whole numbers from 1 to {MOST_WORKERS}, such as "
                "{3, 6, 12}: it is read without running the file.",
            )
        return ancestor.worker_counts
    return ()


def _worker_counts_of(node: ast.ClassDef) -> tuple[tuple[int, ...] | None, int | None]:
    """Return ``worker_counts`` and ``worker_counts_line`` of :class:`ClassInfo`."""
    for statement in node.body:
        value = _assigned(statement, "worker_counts")
        if value is not None:
            return _literal_counts(value), value.lineno
    return None, None


def _literal_counts(value: ast.expr) -> tuple[int, ...] | None:
    if ast.unparse(value) in ("set()", "frozenset()"):
        return ()
    if not isinstance(value, ast.Set | ast.List | ast.Tuple) or len(value.elts) > MOST_WORKER_COUNTS:
        return None
    counts = [item.value for item in value.elts if isinstance(item, ast.Constant) and _is_count(item.value)]
    return tuple(sorted(set(counts))) if len(counts) == len(value.elts) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_WORKERS


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return None
    return statement.value if any(isinstance(t, ast.Name) and t.id == name for t in targets) else None


def _is_name(item: ast.expr) -> bool:
    return (
        isinstance(item, ast.Constant)
        and isinstance(item.value, str)
        and len(item.value) <= MAXIMUM_NAME_CHARACTERS
        and name_problem(item.value) is None
    )


def _literal_strings(value: ast.expr) -> tuple[str, ...] | None:
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in {"set", "frozenset"}
    ):
        if not value.args and not value.keywords:
            return ()
        if len(value.args) == 1:
            value = value.args[0]
    if isinstance(value, ast.Set | ast.List | ast.Tuple) and len(value.elts) <= MOST_SPEED_NEUTRAL:
        items = [str(ast.literal_eval(item)) for item in value.elts if _is_name(item)]
        if len(items) == len(value.elts):
            return tuple(sorted(set(items)))
    return None
