"""Reads workers' output in bounded pieces."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.models import Job, LogChunk

MAXIMUM_CHUNKS = 500
MAXIMUM_CHARACTERS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogPage:
    """Chunks in order; ``next_after``: where to continue; ``more``: whether more exist already."""

    results: list[LogChunk]
    next_after: int
    more: bool


def log_page(job: Job, *, after: int = 0, rank: int | None = None) -> LogPage:
    """Return the chunks with ids beyond ``after`` that fit into one answer (at least one)."""
    chunks = LogChunk.objects.filter(job=job, pk__gt=after).order_by("pk")
    if rank is not None:
        chunks = chunks.filter(rank=rank)
    found = list(chunks[: MAXIMUM_CHUNKS + 1])
    taken: list[LogChunk] = []
    characters = 0
    for chunk in found[:MAXIMUM_CHUNKS]:
        characters += len(chunk.text)
        if taken and characters > MAXIMUM_CHARACTERS:
            break
        taken.append(chunk)
    return LogPage(taken, taken[-1].pk if taken else after, more=len(taken) < len(found))


def log_tail(job: Job, *, lines: int, after: int = 0, rank: int | None = None) -> LogPage:
    """Return the last ``lines`` lines beyond ``after``; the first chunk is cut to begin with them."""
    chunks = LogChunk.objects.filter(job=job, pk__gt=after).order_by("-pk")
    if rank is not None:
        chunks = chunks.filter(rank=rank)
    taken: list[LogChunk] = []
    missing, characters = lines, 0
    for chunk in chunks[:MAXIMUM_CHUNKS]:
        characters += len(chunk.text)
        if taken and characters > MAXIMUM_CHARACTERS:
            break
        taken.append(chunk)
        ended = chunk.text.count("\n")
        # The newest chunk may end within a line, which counts as one.
        missing -= ended + (1 if len(taken) == 1 and not chunk.text.endswith("\n") else 0)
        if missing < 0:
            chunk.text = "".join(chunk.text.splitlines(keepends=True)[-missing:])
            break
    taken.reverse()
    return LogPage(taken, taken[-1].pk if taken else after, more=False)
