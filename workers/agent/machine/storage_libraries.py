"""Which storage jobs may read on this server unless its configuration says otherwise."""

from __future__ import annotations

from punctual.protocol.storage import missing_library

#: As far as their libraries are installed.
_USUAL = ("http", "https", "s3", "gs", "abfs")


def usual_schemes() -> tuple[str, ...]:
    """The schemes that jobs may declare."""
    return tuple(scheme for scheme in _USUAL if not missing_library(scheme))
