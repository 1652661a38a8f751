"""Which kind of GPU a job is offered to, in a cluster with several: each kind is a pool, and a promise names
one.

A job is submitted to one kind after another until one admits it; a refusal is final only on the last. The
rule is the same live and in simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindOfGpu:
    """One kind of GPU in the cluster."""

    #: Name of the kind.
    name: str
    #: Number of its GPUs.
    gpus: int
    #: Unfinished jobs on it.
    jobs: int = 0


def asking_order(kinds: Iterable[KindOfGpu], *, deadline: bool) -> tuple[str, ...]:
    """The order in which a job is submitted to the kinds; kinds without a GPU are omitted.

    A job with a deadline tries the kind with the most GPUs first, which has the most room. A job without one
    is never refused, so it goes first to the kind with the fewest unfinished jobs for each GPU.
    """
    there = [kind for kind in kinds if kind.gpus > 0]
    if deadline:
        return tuple(kind.name for kind in sorted(there, key=lambda kind: (-kind.gpus, kind.name)))
    return tuple(
        kind.name for kind in sorted(there, key=lambda kind: (kind.jobs / kind.gpus, -kind.gpus, kind.name))
    )


def main_kind(gpus: Mapping[str, int]) -> str | None:
    """The kind with the most GPUs, which jobs with a deadline try first; its pool is the one that borrows.
    None without GPUs."""
    order = asking_order((KindOfGpu(*each) for each in gpus.items()), deadline=True)
    return next(iter(order), None)


def next_kind(order: Sequence[str], refused: Collection[str]) -> str | None:
    """The first kind of the order that has not refused the job; None if all have."""
    return next((kind for kind in order if kind not in refused), None)
