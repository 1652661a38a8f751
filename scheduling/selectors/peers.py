"""What a server's in-memory store has to do with those of other servers (docs/protocols.md 2.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.choices import ServerState
from cluster.models import Server
from scheduling.choices import GenerationState, Purpose
from scheduling.models import Generation

_GIVEN_UP = (ServerState.DOWN, ServerState.REMOVED)


def peers_of(server: Server, ranks_here: Mapping[Generation, Sequence[int]]) -> dict[str, Any]:
    """Where the server's store listens, and for each generation that concerns it whose copies it keeps, who
    keeps its own, and what it fetches. The secrets are the stores' alone.

    Args:
        ranks_here: of the generations whose workers are on it.
    """
    kept = list(
        Generation.objects.filter(purpose=Purpose.TRAINING, protection__holders__contains=[[server.pk]])
        .exclude(state=GenerationState.RETIRED)
        .order_by("job_id", "number")
        .only("job_id", "number", "protection", "store_secret")
    )
    holders = {one for generation in kept for held in generation.protection["holders"] for one in held}
    stores = _stores(holders)
    groups = {
        (generation.job_id, generation.number): {
            "job": generation.job_id,
            "generation": generation.number,
            "secret": generation.store_secret,
            "send": [
                {"rank": rank, "peers": [stores[one] for one in held[1:] if one in stores]}
                for rank, held in enumerate(generation.protection["holders"])
                if held[0] == server.pk
            ],
            "keep": [
                rank for rank, held in enumerate(generation.protection["holders"]) if server.pk in held[1:]
            ],
            "fetch": [],
        }
        for generation in kept
    }
    for generation, ranks in ranks_here.items():
        _add_fetches(groups, server, generation, ranks)
    return {"server": str(server.pk), "port": server.store_port, "groups": list(groups.values())}


def _stores(server_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Where the stores of these servers are reached, without those that were given up."""
    return {
        server.pk: {"server": str(server.pk), "address": server.address, "port": server.store_port}
        for server in Server.objects.filter(pk__in=set(server_ids)).exclude(state__in=_GIVEN_UP)
        if server.store_port is not None
    }


def _add_fetches(
    groups: dict[tuple[str, int], dict[str, Any]],
    server: Server,
    generation: Generation,
    ranks: Sequence[int],
) -> None:
    """What ranks here read that may lie elsewhere."""
    start = generation.start
    if start is None or start["from"] != "memory":
        return
    key = (generation.job_id, start["generation"])
    if key not in groups:
        secret = Generation.objects.values_list("store_secret", flat=True).get(
            job_id=generation.job_id, number=start["generation"]
        )
        if not secret:
            return
        groups[key] = {
            "job": key[0], "generation": key[1], "secret": secret, "send": [], "keep": [], "fetch": [],
        }  # fmt: skip
    for shard in start["shards"]:
        if shard["reader"] not in ranks:
            continue
        peers = [
            {"server": str(one["server"]), "address": one["address"], "port": one["port"]}
            for one in shard["holders"]
            if one["server"] != server.pk and one.get("port") is not None
        ]
        if peers:
            groups[key]["fetch"].append({"rank": shard["id"], "peers": peers})
