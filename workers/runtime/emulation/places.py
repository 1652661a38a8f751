"""Where the ranks of a generation are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """Numbers of the servers and racks on which the ranks of a generation are, by rank."""

    servers: tuple[int, ...]
    racks: tuple[int, ...]
