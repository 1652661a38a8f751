"""Which replicas start and drain next, so that a deployment reaches its wanted replicas and always answers. A
generation replaces another one replica at a time: it starts one before it drains one.

The rules, in this order:

1. The newest generation gets as many replicas as wanted. While an older one serves, they start one at a time,
   in addition to what serves.
2. An older replica drains for each newer one that serves beyond the wanted number.
3. If there is no place for one more and at least two serve, one older replica drains first: capacity drops by
   one, never to none.
4. Replicas of the newest generation beyond the wanted number drain; those that do not serve yet go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """A replica that starts or serves.

    Attributes:
        is_newest: whether it belongs to the wanted generation and may stay on its server.
        is_serving: whether it answers requests; otherwise it is still starting.
    """

    key: str
    is_newest: bool
    is_serving: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """The next steps.

    Attributes:
        start: replicas of the newest generation to start. drain: keys of replicas to drain.
        surplus: how many serving replicas of the newest generation have to drain besides.
        blocked: why the wanted number is not reached, in words; empty: it will be.
    """

    start: int = 0
    drain: tuple[str, ...] = ()
    surplus: int = 0
    blocked: str = ""


def next_steps(replicas: Sequence[Standing], wanted: int, places: int) -> Steps:
    """Return the next steps towards ``wanted`` replicas of the newest generation.

    Args:
        places: how many more replicas there is room for.

    Raises ValueError for a negative number.
    """
    if wanted < 0 or places < 0:
        raise ValueError(f"wanted is {wanted}, places {places}; neither can be negative")
    if not wanted:
        return Steps(drain=tuple(replica.key for replica in replicas))
    new = [replica for replica in replicas if replica.is_newest]
    useless = [replica.key for replica in replicas if not replica.is_newest and not replica.is_serving]
    old = [replica.key for replica in replicas if not replica.is_newest and replica.is_serving]
    if not old:
        return _newest_alone(new, wanted, places, useless)
    serving = sum(replica.is_serving for replica in new)
    is_one_starting = serving < len(new)
    lacking = max(0, wanted - len(new))
    start = 0 if is_one_starting else min(lacking, places, 1)
    drain = old[: max(0, serving + len(old) - wanted)]
    if lacking and not start and not is_one_starting and not drain:
        if serving + len(old) < 2:
            return Steps(drain=tuple(useless), blocked="There is no place for a replica beside the only one.")
        drain = old[:1]
    return Steps(start, (*useless, *drain))


def _newest_alone(new: Sequence[Standing], wanted: int, places: int, useless: Sequence[str]) -> Steps:
    excess = max(0, len(new) - wanted)
    idle = [replica.key for replica in new if not replica.is_serving][:excess]
    lacking = max(0, wanted - len(new))
    blocked = ""
    if lacking > places:
        blocked = f"There is no place for {lacking - places} of {wanted} replicas."
    return Steps(min(lacking, places), (*useless, *idle), surplus=excess - len(idle), blocked=blocked)
