"""The panels of a deployment whose servers spread experts."""

from __future__ import annotations

from typing import Any

from dashboard.figures.deployments import deployment_experts, deployment_placement


def layer(name: str, **changes: Any) -> dict[str, Any]:
    found = {
        "name": name, "popularity": [0.75, 0.25], "predicted": None, "hosts": [[0], [1]],
        "estimated_passes": 0, "replaced_passes": 0, "load": 1.5, "even_load": 1.5,
    }  # fmt: skip
    return found | changes


EXPERTS = {
    "servers": ["a<b>", "second"],
    "layers": [
        layer("first"),
        layer(
            "later",
            predicted=[0.5, 0.5],
            hosts=[[0, 1], [1]],
            estimated_passes=8,
            replaced_passes=2,
            load=1.1,
        ),
    ],
    "layers_left_out": 0,
    "swaps": 3,
    "swap_seconds": 0.5,
    "waited_seconds": 0.1,
}


def test_predicted_popularity_lies_next_to_the_actual() -> None:
    drawn = deployment_experts.figure(EXPERTS)
    assert drawn is not None
    assert [list(row) for row in drawn.data[0].z] == [[1.5, 0.5], [1.0, 1.0], [1.5, 0.5]]
    assert [name.strip() for name in drawn.layout.yaxis.ticktext] == [
        "first",
        "predicted, later",
        "actual, later",
    ]
    assert "In 25% of the predicted passes" in deployment_experts.caption(EXPERTS)


def test_the_places_of_experts_show_their_replicas() -> None:
    drawn = deployment_placement.figure(EXPERTS)
    assert drawn is not None
    assert [list(row) for row in drawn.data[0].z] == [[1, 1], [2, 1]]
    assert "<b>" not in drawn.data[0].customdata[1][0].replace("<br>", "")
    assert "1.30 times the mean, 1.50 with even places" in deployment_placement.caption(EXPERTS)


def test_panels_are_absent_without_a_group() -> None:
    nothing = {**EXPERTS, "layers": []}
    for panel in (deployment_experts.PANEL, deployment_placement.PANEL):
        assert panel.is_absent is not None
        assert panel.is_absent(nothing)
