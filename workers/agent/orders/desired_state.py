"""The control plane's desired state of this server, as checked values (protocol 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from recovery.store.groups import LEAST_SECRET_CHARACTERS

Goal = Literal["prepare", "train", "serve", "hand_over", "drain", "suspend", "stop"]
Purpose = Literal["training", "profiling", "serving"]

# A worker's goals only move to the right.
GOALS: tuple[Goal, ...] = get_args(Goal)


def goal_rank(goal: Goal | None) -> int:
    """Return the place of a goal in the order of goals; -1 before the first."""
    return -1 if goal is None else GOALS.index(goal)


class DesiredStateError(ValueError):
    """The control plane's answer is invalid; no part of it is obeyed."""


@dataclass(frozen=True)
class WorkerSlot:
    """One worker of a generation on this server. At `handover_port` it serves its shard, or a deployment's
    requests."""

    rank: int
    gpu_index: int
    handover_port: int | None = None


@dataclass(frozen=True)
class GenerationDesire:
    """One generation of one job, as far as it concerns this server. `specification` is the original entry."""

    job: str
    generation: int
    epoch: int
    purpose: Purpose
    goal: Goal
    #: Source of its state; None before it is known.
    start: Mapping[str, Any] | None
    workers: tuple[WorkerSlot, ...]
    specification: Mapping[str, Any]


@dataclass(frozen=True)
class StorePeers:
    """This server's part in the exchange between in-memory stores: its name, the port on which its store
    listens, and one entry for each generation, in the store's format."""

    server: str
    port: int | None
    groups: tuple[Mapping[str, Any], ...]

    def keeps_copies(self) -> bool:
        """Whether copies for other servers are to be kept here."""
        return any(group["keep"] for group in self.groups)


@dataclass(frozen=True)
class LinkProbe:
    """A requested measurement of the link to another server, by calling its agent or answering it.

    ``link``, ``number``: identify the measurement. ``calls``: whether this server calls. ``here``: this
    server's name, ``server``: the other's. ``port``: where the answering server listens.
    """

    link: int
    number: int
    calls: bool
    here: str
    server: str
    #: Address of the other server.
    address: str
    port: int
    #: Whether both servers are in one rack.
    same_rack: bool
    #: Secret that both agents prove to have.
    secret: str

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the measurement."""
        return self.link, self.number

    @property
    def name(self) -> str:
        """The measurement's name, common to both ends."""
        return f"link {self.link}"


@dataclass(frozen=True)
class DesiredState:
    """All generations that should run here, with the planner's epoch and the version that orders answers."""

    epoch: int
    #: Version of this server's desired state; older answers are ignored.
    version: int
    generations: tuple[GenerationDesire, ...]
    #: Jobs whose recovery points in this server's memory are useful, though they do not run here now.
    remembered: frozenset[str] = frozenset()
    #: Other jobs whose points stay while no job needs the memory.
    spare: frozenset[str] = frozenset()
    memory: StorePeers | None = None
    link_probe: LinkProbe | None = None

    def jobs_in_memory(self) -> set[str]:
        """Return the jobs whose recovery points in memory stay."""
        kept = () if self.memory is None else (group["job"] for group in self.memory.groups)
        return {*self.remembered, *self.spare, *kept, *(desire.job for desire in self.generations)}


def parse_desired_state(body: Any) -> DesiredState:
    """Parse the desired state from an answer's JSON `body`. Raises DesiredStateError, naming the field."""
    generations = tuple(_parse_generation(entry) for entry in _list(body, "generations"))
    remembered = frozenset(map(str, _list(body, "remembered") if "remembered" in body else ()))
    spare = frozenset(map(str, _list(body, "spare") if "spare" in body else ()))
    memory = body.get("memory") if isinstance(body, dict) else None
    probe = body.get("link_probe") if isinstance(body, dict) else None
    return DesiredState(
        _integer(body, "epoch"),
        _integer(body, "desired_version"),
        generations,
        remembered,
        spare,
        None if memory is None else _parse_peers(memory),
        None if probe is None else _parse_probe(probe),
    )


def _parse_probe(body: Any) -> LinkProbe:
    link, number, port = _integer(body, "link"), _integer(body, "number"), _integer(body, "port")
    here, server, address, secret = (body.get(name) for name in ("here", "server", "address", "secret"))
    if not (isinstance(here, str) and isinstance(server, str) and isinstance(address, str)):
        raise DesiredStateError("a link to measure without names or an address")
    if not isinstance(secret, str) or len(secret) < LEAST_SECRET_CHARACTERS:
        raise DesiredStateError("a link to measure without a secret")
    if body.get("role") not in ("call", "answer"):
        raise DesiredStateError(f"a link to measure in the role {body.get('role')!r}")
    calls, same_rack = body["role"] == "call", body.get("same_rack") is True
    return LinkProbe(link, number, calls, here, server, address, port, same_rack, secret)


def _parse_peers(body: Any) -> StorePeers:
    groups = _list(body, "groups")
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("job"), str):
            raise DesiredStateError("a group of stores without a job")
        for rank in _list(group, "keep"):
            if not isinstance(rank, int):
                raise DesiredStateError(f"job {group['job']}: a rank to keep is no number")
        _integer(group, "generation")
        secret = group.get("secret")
        if not isinstance(secret, str) or len(secret) < LEAST_SECRET_CHARACTERS:
            raise DesiredStateError(f"job {group['job']}: a group of stores without a secret")
        for entry in (*_list(group, "send"), *_list(group, "fetch")):
            _integer(entry, "rank")
            for peer in _list(entry, "peers"):
                _integer(peer, "port")
                if not isinstance(peer.get("server"), str) or not isinstance(peer.get("address"), str):
                    raise DesiredStateError(f"job {group['job']}: a peer without a name or an address")
    port = _integer(body, "port") if body.get("port") is not None else None
    return StorePeers(str(body.get("server")), port, tuple(groups))


def _parse_generation(entry: Any) -> GenerationDesire:
    job = entry.get("job") if isinstance(entry, dict) else None
    if not isinstance(job, str) or not job:
        raise DesiredStateError("a generation without a job")
    purpose, goal, start = entry.get("purpose"), entry.get("goal"), entry.get("start")
    if purpose not in get_args(Purpose):
        raise DesiredStateError(f"job {job}: unknown purpose {purpose!r}")
    if goal not in GOALS:
        raise DesiredStateError(f"job {job}: unknown goal {goal!r}")
    if start is not None and not isinstance(start, dict):
        raise DesiredStateError(f"job {job}: start is neither null nor an object")
    slots = tuple(
        WorkerSlot(
            _integer(worker, "rank"),
            _integer(worker, "gpu_index"),
            _integer(worker, "handover_port") if worker.get("handover_port") is not None else None,
        )
        for worker in _list(entry, "workers")
    )
    return GenerationDesire(
        job=job,
        generation=_integer(entry, "generation"),
        epoch=_integer(entry, "epoch"),
        purpose=purpose,
        goal=goal,
        start=start,
        workers=slots,
        specification=entry,
    )


def _list(body: Any, name: str) -> list[Any]:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, list):
        raise DesiredStateError(f"{name} is not a list")
    return value


def _integer(body: Any, name: str) -> int:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise DesiredStateError(f"{name} is not a whole number")
    return value
