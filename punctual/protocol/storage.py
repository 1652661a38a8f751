"""Storage that can be read here: fsspec supports many URL schemes, most of them with an extra library."""

from __future__ import annotations

from functools import cache

import fsspec


@cache
def missing_library(scheme: str) -> str:
    """Return why ``scheme`` cannot be read here, in fsspec's words; "" if it can."""
    if scheme in ("http", "https"):
        return ""
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        return str(error)
    return ""
