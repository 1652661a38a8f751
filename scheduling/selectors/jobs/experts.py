"""Destinations of the tokens of a job's mixture-of-experts layers, and the hosts of its experts."""

from __future__ import annotations

from typing import Any

from scheduling.models import Assignment, Job, JobExperts

NOTHING: dict[str, Any] = {
    "generation": None, "iteration": None, "iterations": 0, "told_at": None, "layers": [], "other_layers": 0,
    "workers": [], "all_to_all": None, "decisions": [], "history": [],
}  # fmt: skip


def experts_of(job: Job) -> dict[str, Any]:
    """Return what the job's page and `GET /jobs/{id}/experts/` show: its workers' last record, packing
    decisions, and a coarse history."""
    kept = JobExperts.objects.filter(job=job).first()
    if kept is None:
        return NOTHING
    latest = kept.latest
    return {
        "generation": kept.generation,
        **{name: latest[name] for name in ("iteration", "iterations", "told_at", "other_layers")},
        "layers": [_layer(each) for each in latest["layers"]],
        "workers": _workers(job, kept.generation),
        "all_to_all": _all_to_all(latest["timing"]),
        "decisions": kept.decisions,
        "history": kept.history,
    }


def _layer(record: dict[str, Any]) -> dict[str, Any]:
    rows, tokens = sum(record["rows"]), record["tokens"]
    even = rows / len(record["rows"])
    return {
        **{name: record[name] for name in ("name", "tokens", "rows", "dropped", "balance_loss", "hosts")},
        "load": [each / even if even else 0.0 for each in record["rows"]],
        "two_expert_share": record["two_expert_tokens"] / tokens if tokens else 0.0,
        "dropped_share": sum(record["dropped"]) / rows if rows else 0.0,
    }


def _workers(job: Job, generation: int) -> list[dict[str, Any]]:
    """Return the server and GPU of each rank of a generation."""
    given = Assignment.objects.filter(generation__job=job, generation__number=generation).order_by("rank")
    return [
        {"rank": rank, "server": server, "gpu": gpu}
        for rank, server, gpu in given.values_list("rank", "gpu__server__name", "gpu__index")
    ]


def _all_to_all(timing: dict[str, Any] | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    whole = timing["iteration_seconds"]
    share = timing["all_to_all_seconds"] / whole if whole else 0.0
    between_servers = timing.get("between_servers")
    if between_servers is not None:
        between_servers = {"rates_source": "published", **between_servers}
    return {**timing, "between_servers": between_servers, "share": share}


def newest_decisions(job: Job, count: int) -> list[dict[str, Any]]:
    """Return the last packing decisions of a job, the newest first."""
    kept = JobExperts.objects.filter(job=job).only("decisions").first()
    return [] if kept is None else kept.decisions[: -count - 1 : -1]
