"""How many servers a deployment needs (our own rule; Lyra takes the need as given, section 3.4).

Requests queue where replicas are busy. With a share ρ of the time busy, a request whose batch takes S seconds
takes about S / (1 - ρ) (one queue per replica, Poisson arrivals, exponential service; Pollaczek-Khinchine has
the same form with other constants). The rule therefore predicts latency before it exceeds its target, and
chooses a number of servers that keeps the prediction below it. If the measured latency is above the target,
it adds one server, unless waiting is so small a part of it that no number of servers would meet the target.

The rule adds servers at once, and removes them one by one after a calm time, so that a fluctuating load
does not cause oscillation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

#: Replicas should be busy for at most this share of the time, so that a burst finds room.
BUSY_TARGET = 0.7
#: A server is removed only if fewer servers would stay below this share of both targets,
RELAXED = 0.8
#: in each of this many periods (of 5 s: a minute).
CALM_PERIODS = 12


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """Bounds and target of one deployment. The target is for the 95th percentile; None: there is none.

    Raises ValueError if they are invalid.
    """

    least: int
    most: int
    latency_target_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"servers from {self.least} to {self.most}; needed is 1 <= least <= most")
        target = self.latency_target_seconds
        if target is not None and not (target > 0.0 and isfinite(target)):
            raise ValueError(f"latency_target_seconds is {target}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements of one period over all replicas.

    Attributes:
        busy_servers: shares of the time within `predict`, summed over replicas.
        service_seconds: mean time of one call of `predict`; 0 without calls.
        latency_seconds: 95th percentile; None without requests.
        refused: requests that found the queue full.
    """

    busy_servers: float = 0.0
    service_seconds: float = 0.0
    latency_seconds: float | None = None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A number of servers, and the reason in words."""

    servers: int
    reason: str


def predicted_latency(service_seconds: float, busy_servers: float, servers: int) -> float:
    """Return the seconds of a request if `servers` servers share the load; infinity if overloaded."""
    if servers <= busy_servers:
        return inf
    return service_seconds / (1.0 - busy_servers / servers)


def servers_for(rule: ScalingRule, load: Load, *, relaxed: float = 1.0) -> int:
    """Return the fewest servers that meet both targets times ``relaxed``, or the most if none do.

    If `predict` alone takes longer than the latency target, no number of servers helps: only the share of
    busy time counts.
    """
    target = rule.latency_target_seconds
    if target is not None and load.service_seconds >= target * relaxed:
        target = None
    for servers in range(rule.least, rule.most + 1):
        if load.busy_servers > BUSY_TARGET * relaxed * servers:
            continue
        if target is None:
            return servers
        if predicted_latency(load.service_seconds, load.busy_servers, servers) <= target * relaxed:
            return servers
    return rule.most


def wanted_servers(rule: ScalingRule, present: int, history: Sequence[Load]) -> Wanted:
    """Return how many servers there should be.

    Args:
        present: how many were wanted so far. history: oldest first.
    """
    present = min(rule.most, max(rule.least, present))
    if not history:
        return Wanted(present, "nothing was measured yet")
    load = history[-1]
    more = servers_for(rule, load)
    reason = f"{load.busy_servers:.2f} servers are busy"
    is_slow = _is_slow(rule, present, load)
    if load.refused:
        more, reason = max(more, present + 1), f"{load.refused} requests found the queue full"
    elif is_slow and more <= present:
        more = present + 1
        reason = f"the 95th percentile is {1000 * (load.latency_seconds or 0):.0f} ms"
    if more > present:
        return Wanted(min(rule.most, more), reason)
    calm = list(history[-CALM_PERIODS:])
    is_calm = len(calm) == CALM_PERIODS and all(
        not past.refused and servers_for(rule, past, relaxed=RELAXED) < present for past in calm
    )
    if is_calm and not is_slow and present > rule.least:
        return Wanted(present - 1, f"fewer servers suffice: {reason}")
    return Wanted(present, reason)


def servers_demanded(rule: ScalingRule, present: int, load: Load) -> float:
    """Return how many servers (may be fractional) the load takes at the capacity that keeps both targets.

    The rule's minimum does not count, as it is not load; the result is at most the rule's maximum.

    Args:
        present: servers that served.
    """
    target, share = rule.latency_target_seconds, BUSY_TARGET
    if target is not None and load.service_seconds < target:
        share = min(share, 1.0 - load.service_seconds / target)
    demanded = load.busy_servers / share
    if load.refused or _is_slow(rule, present, load):
        demanded = max(demanded, present + 1.0)
    return min(float(rule.most), demanded)


def _is_slow(rule: ScalingRule, present: int, load: Load) -> bool:
    """Return whether latency is above a target that more servers can meet.

    A percentile grows with the busy share as the mean does. Without any waiting it would be 1 - ρ of what was
    measured: if that is above the target too, requests are slow for another reason.
    """
    target = rule.latency_target_seconds
    if target is None or load.latency_seconds is None or load.latency_seconds <= target:
        return False
    idle_share = 1.0 - min(1.0, load.busy_servers / max(1, present))
    return max(load.service_seconds, load.latency_seconds * idle_share) < target
