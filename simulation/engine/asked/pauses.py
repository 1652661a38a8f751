"""Whether pauses cost time."""

from __future__ import annotations

from enum import StrEnum


class Pauses(StrEnum):
    """Length of the pauses at starts, moves and rescales: as published measurements say, or zero."""

    MEASURED = "measured"
    NONE = "none"
