"""The ways to divide the cluster, in the order in which a reallocation tries them.

If the pauses of a division break a promise, the next attempt grants fewer GPUs. The last attempt takes the
stored plans without any grant and places promises first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

EVERY_GRANT = 1 << 40


class Base(Enum):
    """The promises' plans that an attempt starts from."""

    FRESH = auto()  # filled from scratch, or the stored plans if that fails
    STORED = auto()  # the plans under which admission keeps the promises
    ANEW = auto()  # filled with room for the pauses of forced moves
    VERIFIED = auto()  # the stored plans; fresh ones if the settings do without stored plans


class Grants(Enum):
    """How many of Algorithm 2's grants an attempt makes."""

    ALL = auto()
    HALF = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to divide the cluster."""

    #: The promises' plans that it starts from.
    base: Base
    #: How many grants it makes.
    grants: Grants
    #: True if jobs keep their GPUs until a plan takes more GPUs or a job ends.
    hold: bool = True
    #: True if all jobs are placed at once; False if promises are placed first, as in their forecast.
    together: bool = False
    #: True if promises that are late nevertheless become at risk; False if the attempt fails then.
    final: bool = False
    #: What the decision reports about it, if anything.
    note: str | None = None


ATTEMPTS = (
    Attempt(Base.FRESH, Grants.ALL, together=True),
    Attempt(Base.FRESH, Grants.ALL),
    Attempt(Base.FRESH, Grants.HALF, together=True, note="half of the grants dropped"),
    Attempt(Base.STORED, Grants.ALL, note="kept the stored plans"),
    Attempt(Base.VERIFIED, Grants.NONE, note="all grants dropped"),
    Attempt(Base.ANEW, Grants.NONE, hold=False, note="planned anew with room for moves"),
    # Exactly the stored plans, which were verified when they were stored: no job holds GPUs beyond its plan.
    Attempt(Base.VERIFIED, Grants.NONE, hold=False, final=True, note="stored plans alone"),
)
"""Attempts in the order in which they are made; the first that keeps every promise is taken."""
