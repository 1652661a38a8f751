"""How the hot loops are compiled: by numba, with a disk cache named by a digest of all kernels.

Numba's own cache identifies a function by the path, the time and the bytes of its file. A kernel that calls a
kernel of another file, or uses a constant from there, would keep the old version after an update. A copied
checkout or an edited comment would compile everything again. The machine code therefore lies in a folder
whose name contains a digest of what the compiler reads (`kernel_digest`). The folder is in the user's cache,
where all checkouts with the same kernels share it.

Compiling all kernels takes a minute. A process with the environment variable `INTERPRET_VARIABLE` runs the
kernels as plain Python if the machine code is not complete when it starts. Its answers are the same; for a
small cluster a decision takes some milliseconds longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core.caching import NullCache
from numba.core.compiler import Compiler, CompileResult
from numba.core.serialize import dumps

from kernels import kernel_digest
from kernels.interpreting import interpreted

# Numba fills in its settings at run time, and its stubs name few of the compiler's options.
_CONFIG: Any = numba.config
_JIT: Any = numba.njit
_COMPILED: Any = CompileResult
_DUMPS: Any = dumps
_COMPILER: Any = Compiler
# The pass that removes pairs of reference counts frees arrays that are still in use (seen with numba 0.68:
# an array returned from one of several branches was overwritten while it was being read).
_CONFIG.LLVM_REFPRUNE_PASS = 0
_FOLDER = Path(__file__).resolve().parent
_ROOT = _FOLDER.parent
PACKAGES = (_ROOT / "scheduling" / "core", _ROOT / "scheduling" / "policies", _FOLDER)
"""The packages whose kernels may call each other. A kernel elsewhere uses only these and its own folder."""
_COMPILING = _ROOT / "launch" / "compile_core.py"
_KEPT_VERSIONS = 8
"""How many folders of machine code lie beside each other before the oldest are removed."""


def digest_of_folders(folders: Iterable[Path], known: Path | None = None) -> str:
    """Digest of what the compiler reads below the folders: sixteen hexadecimal digits.

    It covers every file, because a rule that selected files with kernels once missed one. Parsing them takes
    a second. So the digest is kept in the folder ``known``, under a digest of the files to the byte.
    """
    sources = _sources(folders)
    kept = None if known is None else known / f"sources-{_exact_digest(sources)}"
    if kept is not None:
        with contextlib.suppress(OSError):
            if digest := kept.read_text():
                return digest
    digest = kernel_digest.source_digest(sources)
    if kept is not None:
        _write(kept, digest.encode())
        _remove_oldest(kept.parent.glob("sources-*"), beyond=16 * _KEPT_VERSIONS)
    return digest


def _sources(folders: Iterable[Path]) -> dict[str, bytes]:
    return {
        f"{folder.name}/{source.relative_to(folder).as_posix()}": source.read_bytes()
        for folder in folders
        for source in sorted(folder.rglob("*.py"))
    }


def _exact_digest(sources: Mapping[str, bytes]) -> str:
    reader = Path(kernel_digest.__file__).read_bytes()
    digest = hashlib.sha256(f"{platform.python_version()} {len(reader)}".encode() + reader)
    for name, source in sources.items():
        digest.update(f"\n{name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:32]


def _write(path: Path, content: bytes) -> None:
    """Write the file so that no other process sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="unfinished-") as folder:
        unfinished = Path(folder) / path.name
        unfinished.write_bytes(content)
        unfinished.replace(path)


def _remove_oldest(paths: Iterable[Path], *, beyond: int) -> None:
    """Remove the least recently used files or folders. Other processes may do the same meanwhile."""
    with contextlib.suppress(OSError):
        for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)[beyond:]:
            if path.is_dir():
                _remove_oldest(path.iterdir(), beyond=0)
                path.rmdir()
            else:
                path.unlink(missing_ok=True)


def _compiler() -> str:
    """What machine code depends on beside the sources."""
    options = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "ENABLE_AVX")
    settings = [getattr(_CONFIG, option, None) for option in options]
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    processor = (binding.get_process_triple(), binding.get_host_cpu_name(), *_features())
    return repr((versions, settings, processor))


def _features() -> list[str]:
    return sorted(name for name, exists in binding.get_host_cpu_features().items() if exists)


def _kept_folder() -> Path | None:
    """A writable folder for machine code: the configured one, the user's, or one beside the sources."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    configured = os.environ.get("NUMBA_CACHE_DIR")
    candidates = [Path(configured)] if configured else []
    candidates += [home / "punctual"] if home.is_absolute() else []
    for base in (*candidates, _FOLDER / "__pycache__"):
        try:
            base.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256(f"{digest_of_folders(PACKAGES, base)} {_compiler()}".encode()).hexdigest()
            folder = base / f"kernels-{digest[:16]}"
            is_new = not folder.exists()
            folder.mkdir(exist_ok=True)
            os.utime(folder)
        except OSError:
            continue
        if not os.access(folder, os.W_OK):
            continue
        if is_new:
            _remove_oldest(base.glob("kernels-*"), beyond=_KEPT_VERSIONS)
        return folder
    return None


_KEPT = _kept_folder()


def _completion_mark() -> Path | None:
    """The file that lists the machine code once it is complete; None where no folder is writable.

    An edit of code that calls kernels may need them for other types. The file's name therefore identifies all
    sources to the byte: after an edit, `launch.compile_core` looks for what is missing.
    """
    if _KEPT is None:
        return None
    caller = {"launch": _COMPILING.read_bytes()} if _COMPILING.exists() else {}
    return _KEPT / f"complete-{_exact_digest(_sources(PACKAGES) | caller)}"


def _entries() -> dict[str, int]:
    """The size of each file of machine code, by its name."""
    assert _KEPT is not None
    return {entry.name: entry.stat().st_size for entry in os.scandir(_KEPT) if entry.name.endswith(_SUFFIX)}


_SUFFIX = ".code"


def mark_complete() -> None:
    """Note that no kernel has to be compiled any more."""
    mark = _completion_mark()
    if mark is not None:
        _write(mark, json.dumps(_entries()).encode())


def machine_code_is_complete() -> bool:
    """Whether every kernel is compiled, so that no decision waits for the compiler."""
    mark = _completion_mark()
    try:
        return mark is not None and json.loads(mark.read_bytes()).items() <= _entries().items()
    except (OSError, ValueError):
        return False


INTERPRET_VARIABLE = "INTERPRET_UNTIL_COMPILED"
"""Set in the environment of a process that must not wait for the compiler. Whoever sets it restarts the
process once the machine code is complete."""


def _is_interpreted() -> bool:
    return INTERPRET_VARIABLE in os.environ and _KEPT is not None and not machine_code_is_complete()


INTERPRETED = _is_interpreted()
"""Whether this process runs its kernels as plain Python."""


def whole(number: int) -> int:
    """A 64-bit whole number, as arrays hold it. Numba compiles a kernel once more for the type of a plain
    literal."""
    return cast(int, np.int64(number))


def truth(value: bool) -> bool:
    """A boolean as arrays hold it, for the same reason as `whole`."""
    return cast(bool, np.bool_(value))


YES = truth(True)
NO = truth(False)
ZERO = whole(0)
ONE = whole(1)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile ``function`` on first use and cache the machine code for later processes.

    Numba ignores the annotations, which are for readers and type checkers: it compiles for the types of the
    arguments.
    """
    return _compiled(function)


def leaf(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A `kernel` that creates no array and returns only numbers.

    A leaf borrows its arrays from the caller. A kernel counts a reference to each array when it receives it,
    reads it through a tuple or passes it on, and releases it afterwards. That takes a hundred nanoseconds for
    each call with a problem's arrays, far longer than most leaves run. A leaf may call only leaves, or
    kernels that return numbers. Raises TypeError where the return annotation names anything but numbers.
    """
    returned = set(re.findall(r"\w+", str(function.__annotations__.get("return", "missing"))))
    if not returned <= _NUMBERS:
        raise TypeError(f"{function.__qualname__} is a leaf: it may return numbers alone, not {returned}")
    # Numba compiles the inner functions of its own sorts in the same way (numba/misc/mergesort.py).
    return _compiled(function, _nrt=False)


_NUMBERS = {"int", "float", "bool", "tuple", "None"}


def _compiled(function: Callable[Parameters, Result], **options: bool) -> Callable[Parameters, Result]:
    if INTERPRETED:
        return interpreted(function)
    compiled = _JIT(
        nogil=True, error_model="numpy", no_cfunc_wrapper=True, pipeline_class=_Pipeline, **options
    )(function)
    source = Path(function.__code__.co_filename)
    # A function within another is not known by its name.
    if _KEPT is not None and source.is_relative_to(_ROOT) and "<locals>" not in function.__qualname__:
        name = f"{function.__module__}.{function.__qualname__}"
        _KEPT_CODE[function] = compiled._cache = KeptCode(_KEPT, name, _version(source.parent))
    return cast(Callable[Parameters, Result], compiled)


@lru_cache
def _version(folder: Path) -> str:
    """What the name of the folder of machine code does not say of kernels below ``folder``."""
    assert _KEPT is not None
    in_packages = any(folder.is_relative_to(package) for package in PACKAGES)
    return "" if in_packages else digest_of_folders([folder], _KEPT.parent)


class KeptCode(NullCache):
    """The machine code of one kernel: a file for each kind of arguments.

    There is no index: processes that compile at the same time write different files, or the same file twice.
    Numba copies the code of each callee into its callers and optimises every copy again, though the compiler
    inlines only small functions. Here a large kernel is not copied: its callers refer to its symbol, which is
    the same in every process, and their files name the files of the kernels that they call.
    """

    def __init__(self, folder: Path, name: str, version: str) -> None:
        self.folder, self.name, self.version = folder, name, version

    def digest(self, arguments: Any) -> str:
        """Sixteen hexadecimal digits that tell kinds of arguments and versions apart."""
        return hashlib.sha256(f"{self.folder.name} {self.version} {arguments}".encode()).hexdigest()[:16]

    def path(self, arguments: Any) -> Path:
        """The file for these types of arguments."""
        return self.folder / f"{self.name}-{self.digest(arguments)}{_SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for these types of arguments; None if there is none."""
        target_context.refresh()
        return _loaded(self.path(sig), target_context, sig)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel."""
        library, symbol = data.library, data.fndesc.llvm_func_name
        if data.lifted or library.has_dynamic_globals:
            raise TypeError(f"{self.name} cannot be kept: it uses an array of its module, or objects")
        path = self.path(sig)
        if _is_large(library.get_function(symbol)):
            library._shared_module = binding.parse_assembly(
                f'target triple = "{library.codegen.magic_tuple()[0]}"'
            )
        callees = {
            callee.name: _FILES[callee.name]
            for callee in library._final_module.functions
            if callee.is_declaration and callee.name in _FILES
        }
        _write(path, _DUMPS((sig, callees, data._reduce())))
        _FILES[symbol] = path.name


_LARGE = 100
"""Instructions of a kernel that the compiler does not inline."""
_KEPT_CODE: dict[Callable[..., Any], KeptCode] = {}
_FILES: dict[str, str] = {}
"""The files of the kernels that this process has compiled or loaded, by their symbols."""
_LOADED: dict[Path, Any] = {}


def _is_large(function: Any) -> bool:
    instructions = (one for block in function.blocks for one in block.instructions)
    return next(itertools.islice(instructions, _LARGE, None), None) is not None


def _loaded(path: Path, target_context: Any, arguments: Any = None) -> Any:
    """The compiled kernel of a file, after those that it calls; None if one of them is missing."""
    if path in _LOADED:
        return _LOADED[path]
    try:
        known_arguments, callees, code = pickle.loads(path.read_bytes())  # noqa: S301 (of the same user)
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    # Types that differ may have the same name.
    if arguments is not None and arguments != known_arguments:
        return None
    for symbol, name in callees.items():
        if symbol not in _FILES:
            _loaded(path.with_name(name), target_context)
        if symbol not in _FILES:
            return None
    description = code[1]
    target_context.codegen()._engine._defined_symbols.update(
        (description.llvm_func_name, description.llvm_cpython_wrapper_name)
    )
    _LOADED[path] = _COMPILED._rebuild(target_context, *code)
    _FILES[description.llvm_func_name] = path.name
    return _LOADED[path]


class _Pipeline(_COMPILER):  # type: ignore[misc]
    """Names the symbols of a kernel by its file, where numba counts functions in the order of compilation."""

    def _compile_bytecode(self) -> Any:
        identity = self.state.func_id
        if identity.func in _KEPT_CODE:
            identity.unique_id = int(_KEPT_CODE[identity.func].digest(self.state.args), 16)
            identity.unique_name = f"{identity.func_qualname}${identity.unique_id}"
        return super()._compile_bytecode()
