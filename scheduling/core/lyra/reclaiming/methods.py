"""What may be chosen about reclaims, as names and plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduling.core.question.options import option


class ReclaimMethod(StrEnum):
    """How servers are chosen once jobs have to be preempted.

    ``lyra``: lowest preemption cost first. ``improved``: the best of several greedy choices, improved by a
    0/1 program within a small limit on work; never worse than ``lyra``. ``random`` and ``scf`` (smallest
    count of jobs first) choose among all servers at once and look for neither idle nor flexible ones.
    ``optimal``: the fewest preemptions there can be.
    """

    LYRA = "lyra"
    IMPROVED = "improved"
    RANDOM = "random"
    SCF = "scf"
    OPTIMAL = "optimal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimRules:
    """Choices about reclaims that the Lyra paper leaves open."""

    #: The last server is chosen by the number of jobs it preempts, which is exact. The paper does so only
    #: where one server is reclaimed.
    exact_last_pick: bool = option(True, "the last server by count of jobs")
    #: Spec A4.
    count_owned_servers: bool = option(False, "whether owned servers too share the cost of preempting a job")
    #: Spec A5. Otherwise servers whose workers save the least time go first.
    fewest_workers_first: bool = option(
        False, "which servers with flexible workers alone go back first", offered_as="release",
        words=("least_lost", "fewest_workers"),
    )  # fmt: skip
