"""Reports on mixture-of-experts layers are bounded, stored for their job, and shown."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from cluster.models import Server
from punctual.protocol import limits
from punctual.protocol.experts import ExpertRouting
from punctual.protocol.reports import check
from scheduling.models import Generation, Job, JobExperts
from scheduling.selectors.jobs.experts import experts_of, newest_decisions
from scheduling.services.agents.expert_routing import DECISIONS_KEPT, HISTORY_POINTS, grown
from tests.control_plane.agent_api import busy_server, event, send, training_job

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

LAYER: dict[str, Any] = {
    "name": "1", "tokens": 40, "two_expert_tokens": 10, "rows": [30, 10], "dropped": [6, 0],
    "balance_loss": 1.25, "hosts": [[], []],
}  # fmt: skip
DECISION = {
    "iteration": 12, "from_factor": 1, "to_factor": 2, "ffn_seconds": 0.1, "all_to_all_seconds": 0.2,
    "reason": "expert computation is shorter than the all-to-all",
}  # fmt: skip
SPAN = {"layer": 0, "begin_seconds": 0.1, "end_seconds": 0.2}
BETWEEN_SERVERS = {
    "rates_source": "measured", "hierarchical_share": 1.0, "flat_seconds": 0.3, "hierarchical_seconds": 0.2,
    "predicted_seconds": 0.2, "measured_seconds": 0.25,
}  # fmt: skip
TIMING: dict[str, Any] = {
    "iterations": 8, "iteration_seconds": 0.5, "all_to_all_seconds": 0.2, "seconds": 0.5,
    "backward_seconds": 0.3, "spans": [SPAN], "between_servers": BETWEEN_SERVERS,
}  # fmt: skip
RECORD: dict[str, Any] = {
    "iteration": 20, "iterations": 10, "layers": [LAYER], "timing": TIMING, "decisions": [DECISION],
}  # fmt: skip


def with_layer(**fields: Any) -> dict[str, Any]:
    return RECORD | {"layers": [LAYER | fields]}


def with_timing(**fields: Any) -> dict[str, Any]:
    return RECORD | {"timing": TIMING | fields}


def test_a_valid_record_is_accepted_unchanged() -> None:
    fields, problem = check(ExpertRouting, RECORD)
    assert fields == RECORD | {"other_layers": 0}, problem


MANY = limits.EXPERTS_OF_A_LAYER
RANKS = list(range(limits.HOSTS_OF_AN_EXPERT))


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (with_layer(name="a\N{RIGHT-TO-LEFT OVERRIDE}b"), "printable characters only"),
        (with_layer(name="x" * 201), "at most 200 characters"),
        (with_layer(rows=[1] * (MANY + 1), dropped=[0] * (MANY + 1)), "at most 256 items"),
        (with_layer(rows=[]), "at least 1 item"),
        (with_layer(rows=[30, -1]), "greater than or equal to 0"),
        (with_layer(rows=[30, 2**53]), "less than or equal to"),
        (with_layer(rows=[30]), "rows has 1 experts and dropped 2"),
        (with_layer(dropped=[31, 0]), "dropped more rows than it had"),
        (with_layer(two_expert_tokens=41), "two_expert_tokens is 41 of 40"),
        (with_layer(balance_loss=float("nan")), "finite"),
        (with_layer(hosts=[[0]]), "hosts has 1 experts and rows 2"),
        (with_layer(hosts=[[0], [1, 1]]), "ascending ranks"),
        (with_layer(hosts=[[0], list(range(65))]), "at most 64 items"),
        (with_layer(rows=["30", 10]), "valid integer"),
        (RECORD | {"layers": [LAYER, LAYER]}, "two layers have one name"),
        (RECORD | {"layers": [LAYER | {"name": f"{n}"} for n in range(65)]}, "at most 64 items"),
        (RECORD | {"layers": []}, "there is no layer"),
        (RECORD | {"iterations": 21}, "iterations is 21"),
        (
            RECORD
            | {
                "layers": [
                    LAYER
                    | {"name": f"{n}", "rows": [1] * MANY, "dropped": [0] * MANY, "hosts": [RANKS] * MANY}
                    for n in range(3)
                ]
            },
            "the limit is 32768",
        ),
        (with_timing(all_to_all_seconds=0.6), "longer than the iteration"),
        (with_timing(backward_seconds=0.6), "longer than the iteration"),
        (with_timing(spans=[SPAN | {"layer": 1}]), "not in layers"),
        (with_timing(spans=[SPAN | {"end_seconds": 0.05}]), "before it begins"),
        (with_timing(spans=[SPAN | {"end_seconds": 0.6}]), "after the iteration"),
        (with_timing(spans=[SPAN] * 513), "at most 512 items"),
        (RECORD | {"decisions": [DECISION] * 33}, "at most 32 items"),
        (RECORD | {"decisions": [DECISION | {"to_factor": 0}]}, "greater than or equal to 1"),
        (RECORD | {"decisions": [DECISION | {"ffn_seconds": float("inf")}]}, "finite"),
    ],
)
def test_an_inconsistent_record_is_refused(record: dict[str, Any], complaint: str) -> None:
    fields, problem = check(ExpertRouting, record)
    assert fields is None
    assert complaint in problem


@pytest.fixture
def server() -> Server:
    return busy_server("node-a")


def reported(generation: Generation, **fields: Any) -> dict[str, Any]:
    head = event(generation, "first_iteration")
    return {**head, "id": str(uuid4()), "kind": "expert_routing", **RECORD, **fields}


def trained(server: Server) -> tuple[Job, Generation]:
    job, generation = training_job(server)
    Job.objects.filter(pk=job.pk).update(max_iterations=10_000)
    return job, generation


def test_the_newest_record_is_shown_with_its_workers(server: Server) -> None:
    job, generation = trained(server)
    assert experts_of(job)["layers"] == newest_decisions(job, 20) == []
    send(server, {"events": [reported(generation), reported(generation, iteration=10, decisions=[])]})
    experts = experts_of(job)
    assert (experts["generation"], experts["iteration"], experts["iterations"]) == (generation.number, 20, 10)
    (layer,) = experts["layers"]
    assert (layer["load"], layer["two_expert_share"], layer["dropped_share"]) == ([1.5, 0.5], 0.25, 0.15)
    assert experts["workers"] == [{"rank": 0, "server": "node-a", "gpu": 0}]
    assert experts["all_to_all"]["share"] == 0.4
    assert (
        experts["decisions"] == newest_decisions(job, 20) == [{"generation": generation.number, **DECISION}]
    )
    (point,) = experts["history"]
    assert (point["largest_load"], point["all_to_all_share"]) == ([1.5], 0.4)
    Job.objects.get(pk=job.pk).delete()
    assert not JobExperts.objects.exists()


def test_hosts_outside_the_generation_are_refused(server: Server) -> None:
    job, generation = trained(server)
    ranks = [[0], [generation.world_size]]
    answer = send(server, {"events": [reported(generation, layers=[LAYER | {"hosts": ranks}])]})
    assert "of a generation of 1 workers" in answer.content.decode()
    assert experts_of(job)["layers"] == []


def test_stored_routing_history_is_bounded(server: Server) -> None:
    job, generation = trained(server)
    decisions = [DECISION] * limits.DECISIONS_OF_A_RECORD
    for number in range(1, 6):
        send(server, {"events": [reported(generation, iteration=20 * number, decisions=decisions)]})
    stored = JobExperts.objects.get(job=job)
    assert (stored.iteration, len(stored.history), len(stored.decisions)) == (100, 5, DECISIONS_KEPT)
    other = [LAYER | {"name": "another"}]
    send(server, {"events": [reported(generation, iteration=120, layers=other, timing=None)]})
    (point,) = experts_of(job)["history"]
    assert (point["iteration"], point["all_to_all_share"]) == (120, None)


def test_a_long_history_is_thinned_evenly() -> None:
    history: list[dict[str, Any]] = []
    for iteration in range(1000):
        history = grown(history, {"iteration": iteration})
        assert len(history) <= HISTORY_POINTS
        assert history[-1]["iteration"] == iteration
    steps = [
        later["iteration"] - earlier["iteration"]
        for earlier, later in zip(history, history[1:], strict=False)
    ]
    assert max(steps) <= 2 * 1000 / len(history)
    assert [point["iteration"] for point in grown(history, {"iteration": 0})] == [0]
