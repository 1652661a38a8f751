"""Storage that jobs may read on this server by default."""

from __future__ import annotations

from punctual.protocol.storage import missing_library

#: Allowed if their libraries are installed.
_USUAL = ("http", "https", "s3", "gs", "abfs")


def usual_schemes() -> tuple[str, ...]:
    """Return the URL schemes that jobs may declare."""
    return tuple(scheme for scheme in _USUAL if not missing_library(scheme))
