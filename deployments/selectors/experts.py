"""A group of servers' reports on the experts of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deployments.choices import ReplicaState
from deployments.models import Deployment, Replica

_DIGITS = 4


def deployment_experts(deployment: Deployment) -> dict[str, Any]:
    """Return the experts of the newest group that has reported them; no layers if none has."""
    first = (
        deployment.replicas.exclude(state=ReplicaState.GONE)
        .exclude(experts={})
        .select_related("rollout")
        .order_by("-created_at")
        .first()
    )
    if first is None:
        return {
            "generation": None, "reported_at": None, "servers": [], "layers": [], "layers_left_out": 0,
            "swaps": 0, "swap_seconds": 0.0, "waited_seconds": 0.0,
        }  # fmt: skip
    members = Replica.objects.filter(group=first.group).select_related("server").order_by("rank")
    report = first.experts
    return {
        "generation": first.rollout.number,
        "reported_at": first.counts_at,
        "servers": [member.server.name for member in members],
        "layers": [_layer(layer, first.rollout.group_servers) for layer in report["layers"]],
        **{name: report[name] for name in ("layers_left_out", "swaps", "swap_seconds", "waited_seconds")},
    }


def _layer(layer: Mapping[str, Any], servers: int) -> dict[str, Any]:
    rows, estimated = sum(layer["rows"]), layer["estimated"]
    return {
        "name": layer["name"],
        "rows": layer["rows"],
        "popularity": _shares(layer["rows"]),
        "predicted": _shares(layer["expected"]) if estimated else None,
        "hosts": layer["hosts"],
        "passes": layer["passes"],
        "estimated_passes": estimated,
        "replaced_passes": layer["replaced"],
        "replaced_share": round(layer["replaced"] / estimated, _DIGITS) if estimated else None,
        "load": _ratio(servers * layer["fullest_rows"], rows),
        "even_load": _ratio(servers * layer["fullest_rows_evenly"], rows),
    }


def _shares(numbers: Sequence[float]) -> list[float]:
    whole = sum(numbers)
    return [_ratio(number, whole) for number in numbers]


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, _DIGITS) if whole else 0.0
