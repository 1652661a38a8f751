"""The number of replicas for an accepted monthly probability of a fall-back to durable storage.

Machines fail on their own, and with their rack or power domain. Recovery from memory fails when all machines
that keep some machine's state are lost before the first loss is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import exp, expm1

from recovery.placement.domains import FailureDomains, shared_domains
from recovery.placement.memory import Machine, placed_on
from recovery.placement.strategies import Placement
from recovery.probability.standby import SECONDS_PER_DAY

DAYS_PER_MONTH = 30.0
#: More copies cost more memory and bandwidth than they are worth; the published choice is 2.
MOST_REPLICAS = 4


MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class FailureRates:
    """Failures per day of one machine, one rack and one power domain, and how long a loss stays
    unrepaired."""

    #: Failures of one machine per day.
    machine_a_day: float
    #: Failures of one rack per day.
    rack_a_day: float = 0.0
    #: Failures of one power domain per day.
    power_a_day: float = 0.0
    recovery_seconds: float = 720.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number that is not negative, not {getattr(self, name)}")

    def of_kind(self, kind: str) -> float:
        """Return the failures per day of a ``machine``, or of a domain of kind ``rack`` or ``power``."""
        return {MACHINE: self.machine_a_day, "rack": self.rack_a_day, "power": self.power_a_day}[kind]


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """The replicas chosen. ``fallback_probability[i]``: upper bound for a month with i + 1 replicas.

    ``reason``: why the target is missed; empty when it is met.
    """

    #: Number of copies, including the machine's own.
    replicas: int
    fallback_probability: tuple[float, ...]
    reason: str = ""


def choose_replicas(
    machines: Sequence[Machine],
    rates: FailureRates,
    accepted_a_month: float,
    most: int = MOST_REPLICAS,
    helpers: Sequence[Machine] = (),
) -> ReplicaChoice:
    """Return the fewest replicas for which the monthly fall-back probability is at most
    ``accepted_a_month``.

    ``helpers``: machines without a part of the job; they keep the copies beyond the number of ``machines``.
    If no number meets the target, the one with the lowest probability is chosen, with a reason. Raises
    ValueError for a probability outside (0, 1).
    """
    if not 0.0 < accepted_a_month < 1.0:
        raise ValueError(f"accepted_a_month must lie between 0 and 1, not {accepted_a_month}")
    found: list[float] = []
    there = [*machines, *helpers]
    for replicas in range(1, min(most, len(there)) + 1):
        used = there[: max(replicas, len(machines))]
        domains = [machine.domains for machine in used]
        month = DAYS_PER_MONTH * fallbacks_a_day(placed_on(used, replicas), domains, rates)
        found.append(-expm1(-month))
        if found[-1] <= accepted_a_month:
            return ReplicaChoice(replicas, tuple(found))
    best = found.index(min(found)) + 1
    reason = (
        f"with {best} replicas a month sees a fall-back to durable storage with a probability of up to "
        f"{found[best - 1]:.2g}, and {accepted_a_month:.2g} was asked for; on {len(there)} machines no "
        f"more than {len(found)} replicas were tried"
    )
    return ReplicaChoice(best, tuple(found), reason)


def fallbacks_a_day(placement: Placement, domains: Sequence[FailureDomains], rates: FailureRates) -> float:
    """Return an upper bound on the mean number of fall-backs per day.

    A failure that alone takes a whole replica set counts once. Any other failure counts with the probability
    that the rest of a set that it touches is lost before it is repaired. Summing over sets makes this a
    bound; it is tight while fall-backs are rare.
    """
    sets = placement.replica_sets()
    alone = {one for held in sets for one in shared_domains(domains, sorted(held))}
    total = sum(rates.of_kind(one.kind) for one in alone)
    if placement.replicas == 1:
        total += placement.machines * rates.machine_a_day
    return total + sum(_rest_lost_a_day(_pattern(domains, sorted(held)), rates) for held in sets)


Pattern = tuple[tuple[str, frozenset[int]], ...]


def _pattern(domains: Sequence[FailureDomains], machines: Sequence[int]) -> Pattern:
    """Return the failures that touch a set of machines: their kind, and the members of the set they take."""
    taken: dict[tuple[str, str], set[int]] = {}
    for member, machine in enumerate(machines):
        taken[MACHINE, str(member)] = {member}
        for one in domains[machine].named():
            taken.setdefault(one, set()).add(member)
    return tuple(sorted((kind, frozenset(members)) for (kind, _), members in taken.items()))


@lru_cache(maxsize=4096)
def _rest_lost_a_day(pattern: Pattern, rates: FailureRates) -> float:
    everybody = frozenset().union(*(members for _, members in pattern))
    total = 0.0
    for kind, taken in pattern:
        rate = rates.of_kind(kind)
        if rate > 0.0 and taken != everybody:
            total += rate * _all_lost(pattern, everybody - taken, rates)
    return total


def _all_lost(pattern: Pattern, machines: frozenset[int], rates: FailureRates) -> float:
    """Return the probability that failures within one recovery take all of ``machines``, by inclusion and
    exclusion over the survivors."""
    probability = 0.0
    for count in range(len(machines) + 1):
        for alive in combinations(sorted(machines), count):
            quiet = sum(rates.of_kind(kind) for kind, members in pattern if members & set(alive))
            probability += (-1) ** count * exp(-quiet * rates.recovery_seconds / SECONDS_PER_DAY)
    return max(0.0, probability)
