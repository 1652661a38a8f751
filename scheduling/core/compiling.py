"""How the hot loops are compiled: numba, cached on disk under a digest of all kernel sources.

Numba's own cache looks only at the file a function stands in. A kernel that calls a kernel of
another file would keep the old callee after an update. The cache folder therefore carries a
digest of every source file of this package, and of the policies, that holds kernels: any change compiles afresh.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np

# Numba fills in its settings at run time; type checkers do not see them.
_CONFIG: Any = numba.config
# The pass that removes pairs of reference counts frees arrays that are still in use (seen with numba 0.68:
# an array returned from one of several branches was overwritten while it was being read).
_CONFIG.LLVM_REFPRUNE_PASS = 0
_PACKAGE = Path(__file__).resolve().parent
_WITH_KERNELS = (_PACKAGE, _PACKAGE.parent / "policies")


def _source_digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(source for folder in _WITH_KERNELS for source in folder.glob("*.py")):
        text = source.read_bytes()
        if b"import kernel" in text or source.name == Path(__file__).name:
            digest.update(source.name.encode())
            digest.update(text)
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    """A writable folder for compiled code: the configured one, beside the sources, or temporary."""
    name = f"kernels-{_source_digest()}"
    configured = os.environ.get("NUMBA_CACHE_DIR")
    candidates = [Path(configured)] if configured else []
    candidates += [_PACKAGE / "__pycache__", Path.home() / ".cache" / "punctual"]
    for base in candidates:
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(base / name, os.W_OK):
            return str(base / name)
    return tempfile.mkdtemp(prefix="punctual-kernels-")


_FOLDER = _cache_folder()


# Written as plain literals, these would have callees compiled once more for each literal's own type.
YES = np.bool_(True)
NO = np.bool_(False)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` on first use and keep the machine code for later processes."""
    previous = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _FOLDER
    try:
        return cast(Callable[..., Any], numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        _CONFIG.CACHE_DIR = previous
