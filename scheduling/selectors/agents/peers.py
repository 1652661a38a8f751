"""The exchange of a server's in-memory store with the stores of other servers (docs/protocols.md 2.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Q

from cluster.choices import ServerState
from cluster.models import Server
from scheduling.choices import GenerationState, Purpose
from scheduling.models import Generation

_GIVEN_UP = (ServerState.DOWN, ServerState.REMOVED)

#: Job and number of a generation.
_Key = tuple[str, int]


def peers_of(server: Server, ranks_here: Mapping[Generation, Sequence[int]]) -> dict[str, Any]:
    """Return the address of the server's store and, for each of its generations, which copies it keeps, which
    servers keep its own, and what it fetches. Only stores get the secrets.

    Args:
        ranks_here: ranks on the server, by generation.
    """
    kept = {
        (generation.job_id, generation.number): generation
        for generation in Generation.objects.filter(
            purpose=Purpose.TRAINING, protection__holders__contains=[[server.pk]]
        )
        .exclude(state=GenerationState.RETIRED)
        .order_by("job_id", "number")
        .only("job_id", "number", "protection", "store_secret")
    }
    read = _shards_read(ranks_here)
    secrets = {key: generation.store_secret for key, generation in kept.items()}
    secrets |= _secrets(read.keys() - kept.keys())
    keeping = (held for generation in kept.values() for held in generation.protection["holders"])
    holding = (shard["holders"] for shards in read.values() for shard in shards)
    concerned = {one for held in keeping for one in held} | {
        one["server"] for holders in holding for one in holders
    }
    stores = _stores(concerned - {server.pk})
    return {
        "server": server.name,
        "port": server.store_port,
        "groups": [
            {
                "job": key[0],
                "generation": key[1],
                "secret": secret,
                **_copies(kept.get(key), server, stores),
                "fetch": _fetches(read.get(key, ()), stores),
            }
            for key, secret in secrets.items()
            if secret
        ],
    }


def _copies(
    generation: Generation | None, server: Server, stores: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return the servers that keep copies of local shards, and the ranks of which this server keeps
    copies."""
    holders = [] if generation is None else generation.protection["holders"]
    return {
        "send": [
            {"rank": rank, "peers": [stores[one] for one in held[1:] if one in stores]}
            for rank, held in enumerate(holders)
            if held[0] == server.pk
        ],
        "keep": [rank for rank, held in enumerate(holders) if server.pk in held[1:]],
    }


def _fetches(
    shards: Iterable[Mapping[str, Any]], stores: Mapping[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the servers that hold each of these shards, the nearest first."""
    found = [
        (shard["id"], [stores[one["server"]] for one in shard["holders"] if one["server"] in stores])
        for shard in shards
    ]
    return [{"rank": rank, "peers": peers} for rank, peers in found if peers]


def _shards_read(ranks_here: Mapping[Generation, Sequence[int]]) -> dict[_Key, list[dict[str, Any]]]:
    """Return the shards of earlier generations that local ranks are to read from memory."""
    return {
        (generation.job_id, generation.start["generation"]): [
            shard for shard in generation.start["shards"] if shard["reader"] in ranks
        ]
        for generation, ranks in ranks_here.items()
        if generation.start is not None and generation.start["from"] == "memory"
    }


def _secrets(keys: Iterable[_Key]) -> dict[_Key, str]:
    """Return the secrets with which the stores of these generations authenticate."""
    wanted = Q()
    for job_id, number in keys:
        wanted |= Q(job_id=job_id, number=number)
    if not wanted:
        return {}
    rows = Generation.objects.filter(wanted).values_list("job_id", "number", "store_secret")
    return {(job_id, number): secret for job_id, number, secret in rows.order_by("job_id", "number")}


def _stores(server_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the addresses of these servers' stores, without servers that were given up."""
    ids = set(server_ids)
    if not ids:
        return {}
    return {
        server.pk: {"server": server.name, "address": server.address, "port": server.store_port}
        for server in Server.objects.filter(pk__in=ids).exclude(state__in=_GIVEN_UP)
        if server.store_port is not None
    }
