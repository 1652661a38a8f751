"""Which storage this node can read: fsspec knows many schemes and needs a library of its own for most."""

from __future__ import annotations

import fsspec

#: Taken where nothing is configured, as far as their libraries are installed.
_USUAL = ("http", "https", "s3", "gs", "abfs")


def missing_library(scheme: str) -> str:
    """What using ``scheme`` lacks here, in fsspec's own words; "" when nothing."""
    if scheme in ("http", "https"):
        return ""
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        return str(error)
    return ""


def usual_schemes() -> tuple[str, ...]:
    """The schemes that jobs may declare unless the configuration says otherwise."""
    return tuple(scheme for scheme in _USUAL if not missing_library(scheme))
