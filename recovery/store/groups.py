"""The stores that share the shards of a generation, as the control plane assigns them through the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recovery.store.holdings import Owner
from recovery.store.peer_wire import Peer


@dataclass(frozen=True)
class Group:
    """One generation of a job, as far as it concerns this server.

    Attributes:
        send: for ranks here, the stores that keep a copy. keep: ranks elsewhere whose copy is kept here.
        fetch: ranks whose shard a later generation reads here, and the peers that may have it, nearest first.
    """

    secret: str
    send: Mapping[int, tuple[Peer, ...]] = field(default_factory=dict)
    keep: frozenset[int] = frozenset()
    fetch: Mapping[int, tuple[Peer, ...]] = field(default_factory=dict)


#: Shorter secrets are rejected.
LEAST_SECRET_CHARACTERS = 32

Key = tuple[str, int]


class Groups:
    """All groups that this server belongs to. Other threads read it; it is replaced as a whole."""

    def __init__(self, server: str | None, groups: Mapping[Key, Group]) -> None:
        self.server = server
        self._groups = groups

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Groups:
        """Parse the agent's message. Raises KeyError, TypeError and ValueError."""
        found: dict[Key, Group] = {}
        for entry in message["groups"]:
            key = (str(entry["job"]), int(entry["generation"]))
            if len(str(entry["secret"])) < LEAST_SECRET_CHARACTERS:
                raise ValueError(f"generation {key} without a secret")
            keep = frozenset(int(rank) for rank in entry["keep"])
            found[key] = Group(str(entry["secret"]), _peers(entry["send"]), keep, _peers(entry["fetch"]))
        return cls(str(message["server"]), found)

    def secret_of(self, job: str, generation: int) -> str | None:
        """Return the secret of a generation's shards; None if this server has no part in them."""
        group = self._groups.get((job, generation))
        return None if group is None else group.secret

    def targets(self, owner: Owner) -> tuple[Peer, ...]:
        """Return the peers that keep a copy of that rank's shards."""
        group = self._groups.get((owner.job, owner.generation))
        return () if group is None else group.send.get(owner.rank, ())

    def all_targets(self) -> set[Peer]:
        """Return all peers that keep a copy of something."""
        return {peer for group in self._groups.values() for some in group.send.values() for peer in some}

    def sources(self, owner: Owner) -> tuple[Peer, ...]:
        """Return the peers that may have that rank's shard when it is not here."""
        group = self._groups.get((owner.job, owner.generation))
        return () if group is None else group.fetch.get(owner.rank, ())

    def keeps(self, owner: Owner) -> bool:
        """Whether a copy of that rank's shards is kept here."""
        group = self._groups.get((owner.job, owner.generation))
        return group is not None and owner.rank in group.keep

    def with_secrets_of(self, older: Groups, wanted: set[Key]) -> Groups:
        """Return these groups plus the secrets of generations no longer named whose shards are held: a later
        generation may fetch them."""
        kept = {key: Group(older._groups[key].secret) for key in wanted if key in older._groups}
        return Groups(self.server, {**kept, **self._groups})


def _peers(entries: Any) -> dict[int, tuple[Peer, ...]]:
    return {
        int(entry["rank"]): tuple(
            Peer(str(one["server"]), str(one["address"]), int(one["port"])) for one in entry["peers"]
        )
        for entry in entries
    }
