"""Records of mixture-of-experts layers that workers report, stored per job. No decision depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from punctual.protocol.experts import ExpertRouting
from scheduling.choices import Purpose
from scheduling.models import Generation, Job, JobExperts
from scheduling.services.rows.report_refusals import RefusedEvent

#: Limits for each job.
HISTORY_POINTS = 64
DECISIONS_KEPT = 128
_DIGITS = 4


def note_routing(job: Job, generation: Generation, event: Mapping[str, Any], happened_at: datetime) -> None:
    """Keep a record as the job's newest, a point of its history, and its packing decisions.

    Raises:
        RefusedEvent: an expert lies on a rank that the generation does not have.
    """
    ranks = {rank for layer in event["layers"] for hosts in layer["hosts"] or () for rank in hosts}
    if max(ranks, default=0) >= generation.world_size:
        raise RefusedEvent(f"hosts: rank {max(ranks)} of a generation of {generation.world_size} workers")
    if generation.purpose != Purpose.TRAINING:
        return
    kept = JobExperts.objects.filter(job=job).first() or JobExperts(job=job)
    if (generation.number, event["iteration"]) < (kept.generation, kept.iteration):
        return
    latest = {name: event[name] for name in ExpertRouting.model_fields} | {"told_at": happened_at.isoformat()}
    decisions = [{"generation": generation.number, **each} for each in latest.pop("decisions")]
    point = {"generation": generation.number, **_point(latest)}
    kept.history = grown(kept.history if _has_same_layers(kept.latest, latest) else [], point)
    kept.decisions = [*kept.decisions, *decisions][-DECISIONS_KEPT:]
    kept.generation, kept.iteration, kept.latest = generation.number, event["iteration"], latest
    kept.save()


def grown(history: Sequence[dict[str, Any]], point: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the history with one more point, thinned evenly. Points at or after its iteration are dropped,
    since those iterations are trained again.
    """
    points = [each for each in history if each["iteration"] < point["iteration"]] + [point]
    if len(points) > HISTORY_POINTS:
        at = [each["iteration"] for each in points]
        del points[min(range(1, len(points) - 1), key=lambda place: at[place + 1] - at[place - 1])]
    return points


def _has_same_layers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return [each["name"] for each in one.get("layers", ())] == [each["name"] for each in other["layers"]]


def _point(record: Mapping[str, Any]) -> dict[str, Any]:
    layers, timing = record["layers"], record["timing"]
    share = timing["all_to_all_seconds"] / timing["iteration_seconds"] if _is_timed(timing) else None
    return {
        "iteration": record["iteration"],
        "told_at": record["told_at"],
        "all_to_all_share": None if share is None else round(share, _DIGITS),
        "largest_load": [_share(len(each["rows"]) * max(each["rows"]), sum(each["rows"])) for each in layers],
        "two_expert_share": [_share(each["two_expert_tokens"], each["tokens"]) for each in layers],
        "dropped_share": [_share(sum(each["dropped"]), sum(each["rows"])) for each in layers],
        "balance_loss": [round(each["balance_loss"], _DIGITS) for each in layers],
    }


def _is_timed(timing: Mapping[str, Any] | None) -> bool:
    return timing is not None and timing["iteration_seconds"] > 0


def _share(part: int, whole: int) -> float:
    return round(part / whole, _DIGITS) if whole else 0.0
