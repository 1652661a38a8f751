"""Recovery probability: the probability that every machine's state survives in some memory.

Recovery from memory fails exactly when all machines that keep some machine's state are lost (Gemini 6.2).
Results are exact, in integers and fractions, unless documented as bounds.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

from recovery.placement.strategies import Strategy, require_replicas


def recovery_probability(
    machines: int, replicas: int, lost: int, strategy: Strategy = Strategy.MIXED
) -> Fraction:
    """Return the probability of recovery from memory after a uniformly random set of ``lost`` machines
    fails.

    Raises ValueError for more replicas or losses than machines, and for groups that leave machines over.
    """
    if not 0 <= lost <= machines:
        raise ValueError(f"between 0 and {machines} machines can be lost, not {lost}")
    return Fraction(safe_losses(machines, replicas, lost, strategy), comb(machines, lost))


def safe_losses(machines: int, replicas: int, lost: int, strategy: Strategy = Strategy.MIXED) -> int:
    """Return the number of sets of ``lost`` machines whose loss loses no state."""
    plain, ring = shape(machines, replicas, strategy)
    return sum(
        safe_in_ring(ring, replicas, within) * safe_in_groups(plain, replicas, lost - within)
        for within in range(min(ring, lost) + 1)
    )


def shape(machines: int, replicas: int, strategy: Strategy = Strategy.MIXED) -> tuple[int, int]:
    """Return (plain groups, machines in the ring) of a placement; 0 without a ring."""
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
    """Return the number of sets of ``lost`` machines out of ``groups`` plain groups that contain no whole
    group, by inclusion and exclusion."""
    if lost < 0:
        return 0
    size = groups * replicas
    return sum(
        _sign(whole) * comb(groups, whole) * comb(size - whole * replicas, lost - whole * replicas)
        for whole in range(min(groups, lost // replicas) + 1)
    )


def safe_in_ring(members: int, replicas: int, lost: int) -> int:
    """Return the number of sets of ``lost`` ring machines without ``replicas`` consecutive ones, by cycle
    counting.

    The survivors cut the ring into one run of lost machines per survivor, each shorter than ``replicas``. A
    ring with one marked survivor corresponds to such a sequence of runs; each ring is counted once per
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
    """Return an upper bound for every strategy when ``replicas`` machines are lost."""
    require_replicas(machines, replicas)
    return 1 - Fraction(-(-machines // replicas), comb(machines, replicas))


def corollary(machines: int, replicas: int, lost: int) -> Fraction:
    """Return Corollary 6.1: a lower bound for the group strategy, exact below two groups' losses.

    Raises ValueError if ``replicas`` does not divide ``machines``; the corollary is wrong in that case.
    """
    require_replicas(machines, replicas)
    if machines % replicas:
        raise ValueError(f"the corollary holds for whole groups, and {replicas} does not divide {machines}")
    if lost < replicas:
        return Fraction(1)
    fatal = machines // replicas * comb(machines - replicas, lost - replicas)
    return max(Fraction(0), 1 - Fraction(fatal, comb(machines, lost)))


def ring_union_estimate(machines: int, replicas: int, lost: int) -> Fraction:
    """Return the published figures' estimate for the ring: a lower bound, exact when ``lost`` equals
    ``replicas``."""
    require_replicas(machines, replicas)
    if lost < replicas:
        return Fraction(1)
    fatal = machines * comb(machines - replicas, lost - replicas)
    return max(Fraction(0), 1 - Fraction(fatal, comb(machines, lost)))


def probability_with_independent_failures(
    machines: int, replicas: int, failure_probability: float, strategy: Strategy = Strategy.MIXED
) -> float:
    """Return the probability of recovery from memory when each machine fails independently with
    ``failure_probability``.

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
