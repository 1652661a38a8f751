"""Reduces schedules to the faults that the failure reserve covers (pure).

Ten faults in half a minute cost more than any reserve covers, so a broken promise would prove nothing. By a
seed's own random choice, most schedules keep only as many faults as the reserve covers. In half of these, as
many servers are lost as are in reserve.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from faults.coverage import Charge, is_covered, silence_of
from faults.schedule import LONG_SECONDS, Fault, Target

#: Share of the seeds that keep only covered faults. The others keep all faults.
COVERED_SHARE = 0.6
#: Share of those schedules in which as many servers are lost as the reserve has.
LOST_SHARE = 0.5
#: Latest time of a server's loss: the jobs of a schedule last at most as long as the schedule.
LATEST_LOSS_SECONDS = 4.0


def within_reserve(
    seed: int,
    seconds: float,
    faults: Sequence[Fault],
    targets: Iterable[Target],
    reserve_servers: int,
    charge: Charge,
) -> list[Fault]:
    """Return a seed's schedule: reduced to the faults that the reserve covers, or with all faults.

    ``targets``: candidates for the loss of a server. All faults end by ``seconds`` and do not overlap on one
    target, as in ``faults``.
    """
    chance = random.Random(f"reserve {seed}")
    if not reserve_servers or chance.random() >= COVERED_SHARE:
        return sorted(faults)
    kept: list[Fault] = []
    if chance.random() < LOST_SHARE:
        kept = _lost_servers(chance, seconds, targets, reserve_servers, charge)
    lost = {fault.target for fault in kept}
    # At random, not by time: late faults are as likely to stay as early ones.
    for fault in chance.sample(sorted(faults), len(faults)):
        if fault.target not in lost and is_covered([*kept, fault], reserve_servers, charge):
            kept.append(fault)
    return sorted(kept)


def _lost_servers(
    chance: random.Random, seconds: float, targets: Iterable[Target], reserve_servers: int, charge: Charge
) -> list[Fault]:
    """Return losses of as many servers as the reserve has, each silent for longer than its fence; none if the
    schedule is too short."""
    longest = min(LONG_SECONDS[1], seconds - LATEST_LOSS_SECONDS)
    if longest <= charge.fence_seconds:
        return []
    ways: dict[str, list[Target]] = {}
    for target in sorted(set(targets)):
        if silence_of(target) is not None:
            ways.setdefault(target.server, []).append(target)
    found = []
    for server in chance.sample(sorted(ways), min(reserve_servers, len(ways))):
        target = chance.choice(ways[server])
        kind = silence_of(target)
        assert kind is not None, "chosen by it"
        at = round(chance.uniform(0.5, LATEST_LOSS_SECONDS), 3)
        found.append(Fault(at, kind, target, chance.uniform(charge.fence_seconds, longest)))
    return found
