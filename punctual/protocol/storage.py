"""Which storage can be read here: fsspec knows many URL schemes and needs a library of its own for most."""

from __future__ import annotations

from functools import cache

import fsspec


@cache
def missing_library(scheme: str) -> str:
    """What reading ``scheme`` lacks here, in fsspec's own words; "" when nothing."""
    if scheme in ("http", "https"):
        return ""
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        return str(error)
    return ""
