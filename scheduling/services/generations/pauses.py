"""Pause of a job at a change of workers: its parts, and where the state was read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from scheduling.choices import GenerationState, JobEventKind, StateSource
from scheduling.core.question.quantities import duration_text
from scheduling.models import Generation, Job
from scheduling.selectors.recovery.state_sources import sources_of_shards
from scheduling.services.rows.records import record

_WHERE = {
    StateSource.OWN_MEMORY: "in the memory of the server that read it",
    StateSource.PEER_MEMORY: "from the memory of another server",
    StateSource.DURABLE: "from storage",
}


def note_pause(generation: Generation, event: Mapping[str, Any], pause_seconds: float) -> None:
    """Store the pause that rank 0 reports. Its parts are limited to the whole."""
    generation.pause_seconds = pause_seconds
    generation.waiting_seconds = min(event["waiting_seconds"], pause_seconds)
    generation.loading_seconds = min(event["loading_seconds"], pause_seconds - generation.waiting_seconds)
    generation.save(update_fields=["pause_seconds", "waiting_seconds", "loading_seconds"])


def tell_pause(job: Job, generation: Generation) -> None:
    """Record the pause in the job's history if a state was taken and the generation trains."""
    trains = Generation.objects.filter(pk=generation.pk, state=GenerationState.LIVE).exists()
    counted = Counter(sources_of_shards(generation.start, servers_of_ranks(generation)) if trains else ())
    if not counted or generation.pause_seconds is None:
        return
    waiting, loading = generation.waiting_seconds or 0.0, generation.loading_seconds or 0.0
    rest = max(0.0, round(generation.pause_seconds - waiting - loading, 3))
    read = ", ".join(
        f"{count} {_WHERE[source]}" for source in StateSource if (count := counted.get(source, 0))
    )
    record(
        job,
        JobEventKind.STATE_TAKEN,
        f"Restarted in {duration_text(generation.pause_seconds)}: "
        f"{duration_text(waiting)} until its state was there, {duration_text(loading)} to load it, "
        f"{duration_text(rest)} for the iteration. Of {counted.total()} shards: {read}.",
        generation=generation.number,
    )


def servers_of_ranks(generation: Generation) -> list[int]:
    """Return the server of each rank."""
    members = generation.assignments.filter(rank__lt=generation.world_size).order_by("rank")
    return list(members.values_list("gpu__server_id", flat=True))
