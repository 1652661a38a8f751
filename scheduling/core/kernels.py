"""How the hot loops are compiled: by numba, with a disk cache named by a digest of all kernel sources.

Numba's own cache checks only the file of a function. A kernel that calls a kernel of another file, or uses a
constant from there, would keep the old version after an update. The name of the cache folder therefore
contains a digest of every source file of this package and of the policies, so any change compiles all kernels
anew.

Compiling all kernels takes a minute. A process with the environment variable `INTERPRET_VARIABLE` runs the
kernels as plain Python if the machine code is not complete when it starts. Its answers are the same; for a
small cluster a decision takes some milliseconds longer.
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
"""The packages whose kernels may call each other. A kernel elsewhere may call only these and those of its own
file."""


def source_digest(folders: Iterable[Path]) -> str:
    """Digest of all Python sources under the folders and of numba's settings: sixteen hexadecimal digits.

    It reads every file, because a rule that selected files with kernels once missed one.
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
    """A writable folder for compiled code: the configured one, or one beside the sources."""
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
    """The file that marks the machine code as complete; None where no folder is writable.

    Numba compiles anew for another processor and after any source file was rewritten. The file's name
    therefore identifies the processor and the sources.
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
    """Whether every kernel is compiled, so that no decision waits for the compiler."""
    mark = completion_mark()
    return mark is not None and mark.exists()


INTERPRET_VARIABLE = "INTERPRET_UNTIL_COMPILED"
"""Set in the environment of a process that must not wait for the compiler. Whoever sets it restarts the
process once the machine code is complete."""
INTERPRETED = INTERPRET_VARIABLE in os.environ and _KEPT is not None and not machine_code_is_complete()
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
    previous = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _FOLDER
    try:
        compiled = _JIT(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
            function
        )
        return cast(Callable[Parameters, Result], compiled)
    finally:
        _CONFIG.CACHE_DIR = previous
