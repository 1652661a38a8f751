"""How the hot loops are compiled: numba, cached on disk under a digest of all kernel sources.

Numba's own cache looks only at the file a function stands in. A kernel that calls a kernel of another file,
or takes a constant from there, would keep the old one after an update. The cache folder therefore carries a
digest of every source file of this package and of the policies: any change compiles afresh.

Compiling everything takes a minute, and kernels are Python: until the machine code is there, a process that
is told so runs them as they stand. Its answers are the same; a small cluster's take some milliseconds more.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding

from scheduling.core.interpreting import interpreted

# Numba fills in its settings at run time, and its stubs name few of the compiler's options.
_CONFIG: Any = numba.config
_JIT: Any = numba.njit
# The pass that removes pairs of reference counts frees arrays that are still in use (seen with numba 0.68:
# an array returned from one of several branches was overwritten while it was being read).
_CONFIG.LLVM_REFPRUNE_PASS = 0
_PACKAGE = Path(__file__).resolve().parent
PACKAGES = (_PACKAGE, _PACKAGE.parent / "policies")
"""Where kernels stand that call each other. One elsewhere may call these and those of its own file alone."""


def source_digest(folders: Iterable[Path]) -> str:
    """Digest of all Python sources under the folders, and of what numba compiles by: sixteen hexadecimal
    digits.

    It reads every file, not those alone that look as though they held kernels: a rule of that kind was wrong
    once.
    """
    digest = hashlib.sha256(f"{numba.__version__} bounds checked: {_CONFIG.BOUNDSCHECK}".encode())
    for folder in folders:
        for source in sorted(folder.rglob("*.py")):
            for part in (
                f"{folder.name}/{source.relative_to(folder).as_posix()}".encode(),
                source.read_bytes(),
            ):
                digest.update(len(part).to_bytes(8))
                digest.update(part)
    return digest.hexdigest()[:16]


def _kept_folder() -> Path | None:
    """A writable folder that keeps compiled code: the configured one, or beside the sources."""
    name = f"kernels-{source_digest(PACKAGES)}"
    configured = os.environ.get("NUMBA_CACHE_DIR")
    candidates = [Path(configured)] if configured else []
    candidates += [_PACKAGE / "__pycache__", Path.home() / ".cache" / "punctual"]
    for base in candidates:
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(base / name, os.W_OK):
            return base / name
    return None


_KEPT = _kept_folder()
_FOLDER = str(_KEPT) if _KEPT is not None else tempfile.mkdtemp(prefix="punctual-kernels-")


def completion_mark() -> Path | None:
    """The file which says that all machine code is there; None where nothing can be kept.

    Numba compiles again for another processor, and where a source was written anew, alike or not: the name
    tells what it was compiled for and from.
    """
    if _KEPT is None:
        return None
    digest = hashlib.sha256(f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features()}".encode())
    for folder in PACKAGES:
        for source in sorted(folder.rglob("*.py")):
            written = source.stat()
            digest.update(f" {written.st_mtime_ns} {written.st_size}".encode())
    return _KEPT / f"complete-{digest.hexdigest()[:16]}"


def machine_code_is_complete() -> bool:
    """Whether no decision would wait for the compiler."""
    mark = completion_mark()
    return mark is not None and mark.exists()


INTERPRET_VARIABLE = "INTERPRET_UNTIL_COMPILED"
"""Set in the environment of a process that shall not wait for the compiler. Whoever sets it starts the
process anew once the machine code is complete."""
INTERPRETED = INTERPRET_VARIABLE in os.environ and _KEPT is not None and not machine_code_is_complete()
"""Whether this process runs its kernels as plain Python."""


def whole(number: int) -> int:
    """A whole number as arrays hold it: 64 bits. A kernel that is handed a plain literal is compiled once
    more for the literal's own type."""
    return cast(int, np.int64(number))


def truth(value: bool) -> bool:
    """The same for a yes or no."""
    return cast(bool, np.bool_(value))


YES = truth(True)
NO = truth(False)
ZERO = whole(0)
ONE = whole(1)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile ``function`` on first use and keep the machine code for later processes.

    Its annotations are for readers and type checkers: numba compiles it for the types that it is called with.
    """
    return _compiled(function)


def leaf(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`kernel` for a function that makes no array and returns none, but numbers alone.

    Its arrays are borrowed from the caller. A kernel counts each array as in use when it gets it, reads it
    through a tuple or hands it on, and releases it afterwards: a hundred nanoseconds for every call with a
    problem's arrays, far more than most leaves work. What a leaf calls must be leaves too, or return numbers.
    Raises TypeError where the return annotation names anything but numbers.
    """
    returned = set(re.findall(r"\w+", str(function.__annotations__.get("return", "missing"))))
    if not returned <= _NUMBERS:
        raise TypeError(f"{function.__qualname__} is a leaf: it may return numbers alone, not {returned}")
    # Numba compiles the inner functions of its own sorts so (numba/misc/mergesort.py).
    return _compiled(function, _nrt=False)


_NUMBERS = {"int", "float", "bool", "tuple", "None"}


def _compiled(function: Callable[Parameters, Result], **options: bool) -> Callable[Parameters, Result]:
    if INTERPRETED:
        return interpreted(function)
    previous = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _FOLDER
    try:
        compiled = _JIT(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
            function
        )
        return cast(Callable[Parameters, Result], compiled)
    finally:
        _CONFIG.CACHE_DIR = previous
