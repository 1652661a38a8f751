"""Failure reserve: servers that back no promise (ElasticFlow 4.4; spec 2.12; contracts 6)."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def probability_of_more_failures(servers: int, failure_probability: float, tolerated: int) -> float:
    """P[X > tolerated] for X ~ Binomial(servers, failure_probability)."""
    survived = sum(
        comb(servers, failed)
        * failure_probability**failed
        * (1.0 - failure_probability) ** (servers - failed)
        for failed in range(min(tolerated, servers) + 1)
    )
    return max(0.0, 1.0 - survived)


def servers_to_reserve(servers: int, failure_probability: float, accepted_risk: float) -> int:
    """The smallest number of servers whose loss is exceeded with at most ``accepted_risk``.

    ``failure_probability`` is that of one server within the planning horizon.
    Raises ValueError when a probability is outside [0, 1].
    """
    for name, value in (("failure_probability", failure_probability), ("accepted_risk", accepted_risk)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], not {value}")
    for tolerated in range(servers + 1):
        if probability_of_more_failures(servers, failure_probability, tolerated) <= accepted_risk:
            return tolerated
    return servers


#: Slots that pass until a lost server's jobs are placed again: the one in which it is given up, and the next.
SLOTS_TO_PLACE_AGAIN = 2


def seconds_to_place_again(slot_seconds: float) -> float:
    """At most how long a lost server's jobs wait for other GPUs once it is given up."""
    return SLOTS_TO_PLACE_AGAIN * slot_seconds


def reserved_gpus(server_gpus: Sequence[int], reserve_servers: int) -> int:
    """GPUs that back no promise: the number of GPUs of the ``reserve_servers`` largest usable servers.

    ``server_gpus``: GPUs of each usable server. With the largest ones in reserve, the promises fit whichever
    servers are lost.
    """
    return sum(sorted(server_gpus, reverse=True)[:reserve_servers]) if reserve_servers > 0 else 0
