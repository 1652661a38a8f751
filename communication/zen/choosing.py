"""The choice of a scheme and its formats for one sparse tensor: the fastest by formula (Zen 3.2.4).

The dense all-reduce is always a candidate, so no choice is slower than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape
from communication.zen.balance import expected_imbalance
from communication.zen.drift import MOST_IMBALANCE
from communication.zen.formats import VALUE_BYTES, Format, smallest_format
from communication.zen.profile import SparsityProfile
from communication.zen.schemes import Exchange, Scheme, calls, received_bytes

#: Schemes that the training runtime can execute.
EXECUTABLE = (
    Scheme.DENSE, Scheme.ZEN, Scheme.BALANCED_COO, Scheme.AGSPARSE, Scheme.SPARCML, Scheme.SPARSE_PS,
)  # fmt: skip
#: Schemes with hashed partitions.
HASHED = (Scheme.ZEN, Scheme.BALANCED_COO)


@dataclass(frozen=True)
class OperationTimes:
    """A worker's own time in a sparse exchange: hashing, sorting, adding, encoding, decoding.

    Attributes:
        fixed_seconds: of each exchange of a tensor.
        seconds_per_unit: of each unit that a worker sends or receives.
    """

    fixed_seconds: float = 0.0
    seconds_per_unit: float = 0.0

    def __post_init__(self) -> None:
        if min(self.fixed_seconds, self.seconds_per_unit) < 0:
            raise ValueError("the seconds of operations must not be negative")


NOTHING = OperationTimes()


@dataclass(frozen=True)
class SchemeCost:
    """The cost of one scheme for a tensor.

    Attributes:
        seconds: of the exchange, including steps within a server and a worker's own time.
        operation_seconds: a worker's own time, part of `seconds`.
        received_bytes: of the participant that receives most, between servers (within the server if there is
            only one).
    """

    scheme: Scheme
    seconds: float
    operation_seconds: float
    received_bytes: float


@dataclass(frozen=True)
class TensorChoice:
    """The synchronisation of one tensor.

    Attributes:
        participants: of the exchange: servers, or GPUs if all are on one server.
        scheme, push_format, pull_format: the choice; formats are those of Zen.
        push_imbalance, pull_imbalance: expected for a hash with these participants.
        costs: of every candidate scheme, in the order of `Scheme`; excluded ones are missing.
        within_bytes: that a GPU receives within its server, in the dense steps before and after.
    """

    profile: SparsityProfile
    participants: int
    scheme: Scheme
    push_format: Format
    pull_format: Format
    push_imbalance: float
    pull_imbalance: float
    costs: tuple[SchemeCost, ...]
    within_bytes: float

    @property
    def cost(self) -> SchemeCost:
        """Cost of the chosen scheme."""
        return self.cost_of(self.scheme)

    def cost_of(self, scheme: Scheme) -> SchemeCost:
        """Return the cost of a candidate scheme. Raises ValueError for others."""
        for cost in self.costs:
            if cost.scheme is scheme:
                return cost
        raise ValueError(f"{scheme} was not asked")


def exchange_of(
    profile: SparsityProfile, placement: PlacementShape, *, adaptive_push: bool = False
) -> Exchange:
    """Return the input of the formulas for a job on a placement.

    On several servers the GPUs of each first sum their gradients densely, so the exchange is between servers,
    with the density of their sums. On one server it is between its GPUs.
    """
    spread = placement.spread
    participants = placement.servers if spread else placement.gpus_per_server
    each = placement.gpus_per_server if spread else 1
    law = profile.densification
    pushed, total = law.after(each), law.after(each * participants)
    return Exchange(
        participants=participants,
        dense_bytes=float(profile.dense_bytes),
        densification=law,
        workers_each=each,
        skew=profile.skew,
        width=profile.width,
        push_format=smallest_format(pushed, profile.width) if adaptive_push else Format.COO,
        pull_format=smallest_format(total, profile.width),
        push_imbalance=expected_imbalance(pushed * profile.units, participants),
        pull_imbalance=expected_imbalance(total * profile.units, participants),
    )


def choose_scheme(
    profile: SparsityProfile,
    placement: PlacementShape,
    links: LinkProfile,
    *,
    times: OperationTimes = NOTHING,
    schemes: Sequence[Scheme] = EXECUTABLE,
    adaptive_push: bool = False,
) -> TensorChoice:
    """Return the fastest of ``schemes`` for a tensor; of equally fast ones the first in the order of
    `Scheme`. A tensor that is kept as rows is not all-reduced.

    ``adaptive_push``: choose the format of Push as well, which is always COO in the paper.
    Raises ValueError unless the fall-back scheme is included: dense, or AGsparse for rows.
    """
    if (Scheme.AGSPARSE if profile.rows else Scheme.DENSE) not in schemes:
        raise ValueError("without the scheme that needs no plan there is nothing to fall back to")
    exchange = exchange_of(profile, placement, adaptive_push=adaptive_push)
    rate = links.rate(spread=placement.spread)
    within, within_seconds = _within(profile, placement, links)
    even = exchange.push_imbalance <= MOST_IMBALANCE
    costs = tuple(
        _cost(scheme, exchange, rate, times, within_seconds)
        for scheme in Scheme
        if scheme in schemes
        and (even or scheme not in HASHED)
        and not (profile.rows and scheme is Scheme.DENSE)
    )
    best = min(costs, key=lambda cost: cost.seconds)
    return TensorChoice(
        profile=profile,
        participants=exchange.participants,
        scheme=best.scheme,
        push_format=exchange.push_format,
        pull_format=exchange.pull_format,
        push_imbalance=exchange.push_imbalance,
        pull_imbalance=exchange.pull_imbalance,
        costs=costs,
        within_bytes=within,
    )


def _within(profile: SparsityProfile, placement: PlacementShape, links: LinkProfile) -> tuple[float, float]:
    """Return bytes and seconds of a reduce-scatter and an all-gather within each of several servers."""
    gpus = placement.gpus_per_server
    if not placement.spread or gpus == 1:
        return 0.0, 0.0
    each = (gpus - 1) / gpus * profile.dense_bytes
    return 2.0 * each, 2.0 * links.within.seconds(each)


def _cost(
    scheme: Scheme, exchange: Exchange, rate: LinkRate, times: OperationTimes, within_seconds: float
) -> SchemeCost:
    received = received_bytes(scheme, exchange)
    seconds = within_seconds + received / rate.bytes_per_second
    seconds += calls(scheme, exchange.participants) * rate.latency_seconds
    operations = 0.0
    if scheme is not Scheme.DENSE and exchange.participants > 1:
        unit_bytes = VALUE_BYTES * exchange.width
        own = exchange.density() * exchange.dense_bytes / unit_bytes
        operations = times.fixed_seconds + times.seconds_per_unit * (own + received / unit_bytes)
    return SchemeCost(scheme, seconds + operations, operations, received)
