"""Recovery probability: how likely it is that every machine's state survives in some memory.

Recovery from memory fails exactly when all machines that keep somebody's state are lost (Gemini 6.2; its
specification 2.2). Everything here is exact and counted in whole numbers unless it says that it is a bound.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

from recovery.placement.strategies import Strategy, require_replicas


def recovery_probability(
    machines: int, replicas: int, lost: int, strategy: Strategy = Strategy.MIXED
) -> Fraction:
    """The probability that memory suffices once ``lost`` machines, any as likely as any other, are lost at
    the same time.

    Raises ValueError for more replicas or losses than machines, and for groups that leave machines over.
    """
    if not 0 <= lost <= machines:
        raise ValueError(f"between 0 and {machines} machines can be lost, not {lost}")
    return Fraction(safe_losses(machines, replicas, lost, strategy), comb(machines, lost))


def safe_losses(machines: int, replicas: int, lost: int, strategy: Strategy = Strategy.MIXED) -> int:
    """How many sets of ``lost`` machines may be lost without losing a state."""
    plain, ring = shape(machines, replicas, strategy)
    return sum(
        safe_in_ring(ring, replicas, within) * safe_in_groups(plain, replicas, lost - within)
        for within in range(min(ring, lost) + 1)
    )


def shape(machines: int, replicas: int, strategy: Strategy = Strategy.MIXED) -> tuple[int, int]:
    """(plain groups, machines of the ring) of a placement; no ring is 0."""
    require_replicas(machines, replicas)
    if strategy is Strategy.RING:
        return 0, machines
    plain, left_over = divmod(machines, replicas)
    if left_over and strategy is Strategy.GROUP:
        raise ValueError(
            f"groups of {replicas} leave {left_over} of {machines} machines over; mixed takes them"
        )
    return (plain - 1, replicas + left_over) if left_over else (plain, 0)


def safe_in_groups(groups: int, replicas: int, lost: int) -> int:
    """Sets of ``lost`` machines of ``groups`` plain groups that hold no whole group, by inclusion and
    exclusion."""
    if lost < 0:
        return 0
    size = groups * replicas
    return sum(
        _sign(whole) * comb(groups, whole) * comb(size - whole * replicas, lost - whole * replicas)
        for whole in range(min(groups, lost // replicas) + 1)
    )


def safe_in_ring(members: int, replicas: int, lost: int) -> int:
    """Sets of ``lost`` machines of a ring without ``replicas`` neighbours among them, by cycle counting.

    The survivors cut the ring into as many runs of lost machines as there are survivors, each shorter than
    ``replicas``. A ring with a marked survivor is such a row of runs; each ring is counted once for each
    survivor.
    """
    if members == 0 or lost == 0:
        return int(lost == 0)
    survivors = members - lost
    if survivors <= 0:
        return 0
    rows = sum(
        _sign(long) * comb(survivors, long) * comb(lost - long * replicas + survivors - 1, survivors - 1)
        for long in range(min(survivors, lost // replicas) + 1)
    )
    return members * rows // survivors


def _sign(number: int) -> int:
    return -1 if number % 2 else 1


def upper_bound(machines: int, replicas: int) -> Fraction:
    """What no strategy exceeds where as many machines as replicas are lost."""
    require_replicas(machines, replicas)
    return 1 - Fraction(-(-machines // replicas), comb(machines, replicas))


def corollary(machines: int, replicas: int, lost: int) -> Fraction:
    """Corollary 6.1: a lower bound for the group strategy, exact for fewer than two groups' losses.

    Raises ValueError where ``replicas`` does not divide ``machines``: there the corollary is wrong.
    """
    require_replicas(machines, replicas)
    if machines % replicas:
        raise ValueError(f"the corollary holds for whole groups, and {replicas} does not divide {machines}")
    if lost < replicas:
        return Fraction(1)
    fatal = machines // replicas * comb(machines - replicas, lost - replicas)
    return max(Fraction(0), 1 - Fraction(fatal, comb(machines, lost)))


def ring_union_estimate(machines: int, replicas: int, lost: int) -> Fraction:
    """The estimate for the ring in the published figures: a lower bound, exact for ``lost`` equal to
    ``replicas``."""
    require_replicas(machines, replicas)
    if lost < replicas:
        return Fraction(1)
    fatal = machines * comb(machines - replicas, lost - replicas)
    return max(Fraction(0), 1 - Fraction(fatal, comb(machines, lost)))


def probability_with_independent_failures(
    machines: int, replicas: int, failure_probability: float, strategy: Strategy = Strategy.MIXED
) -> float:
    """The probability that memory suffices where each machine is lost with ``failure_probability`` on its
    own.

    Raises ValueError for a probability outside [0, 1].
    """
    if not 0.0 <= failure_probability <= 1.0:
        raise ValueError(f"failure_probability must lie in [0, 1], not {failure_probability}")
    plain, ring = shape(machines, replicas, strategy)
    survived = 1.0 - failure_probability
    in_groups: float = (1.0 - failure_probability**replicas) ** plain
    return in_groups * sum(
        safe_in_ring(ring, replicas, lost) * failure_probability**lost * survived ** (ring - lost)
        for lost in range(ring + 1)
    )
