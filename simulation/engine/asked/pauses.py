"""Whether starts cost time."""

from __future__ import annotations

from enum import StrEnum


class Pauses(StrEnum):
    """Whether starts, moves and rescales cost time: the published measurements, or nothing."""

    MEASURED = "measured"
    NONE = "none"
