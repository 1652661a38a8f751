"""Which kind of GPU is asked for a job, where a cluster has several: one pool each, and a promise names one
of them.

A job is asked for on one kind after the other until one takes it; a refusal is final only on the last. Live
and simulated alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindOfGpu:
    """A kind: how many GPUs of it there are, and the unfinished jobs on them."""

    name: str
    gpus: int
    jobs: int = 0


def asking_order(kinds: Iterable[KindOfGpu], *, deadline: bool) -> tuple[str, ...]:
    """The kinds in the order in which they are asked; those without a GPU are not.

    A job with a deadline is asked for first where most GPUs are: there is most room for it. Work without one
    is refused by nobody, so the first would get it all: it goes where fewest unfinished jobs share a GPU.
    """
    there = [kind for kind in kinds if kind.gpus > 0]
    if deadline:
        return tuple(kind.name for kind in sorted(there, key=lambda kind: (-kind.gpus, kind.name)))
    return tuple(
        kind.name for kind in sorted(there, key=lambda kind: (kind.jobs / kind.gpus, -kind.gpus, kind.name))
    )


def main_kind(gpus: Mapping[str, int]) -> str | None:
    """The kind with most GPUs, where a job with a deadline is asked for first: its pool is the one that
    borrows. None without any."""
    order = asking_order((KindOfGpu(*each) for each in gpus.items()), deadline=True)
    return next(iter(order), None)


def next_kind(order: Sequence[str], refused: Collection[str]) -> str | None:
    """The first kind of the order that has not refused; None once all have."""
    return next((kind for kind in order if kind not in refused), None)
