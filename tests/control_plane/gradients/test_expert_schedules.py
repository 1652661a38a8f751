"""Lina's schedule among the plans of a mixture's gradients, and the generations that follow it."""

from __future__ import annotations

import pytest

from cluster.models import Gpu, Server
from scheduling.models import GradientPlan, ScalingCurve
from scheduling.services.gradients.gradient_plans import make_plans
from tests.control_plane.agent_api import busy_server
from tests.control_plane.gradients.test_gradient_plans import (
    measured_job,
    on_family,
    submission_curve,
    successor,
)
from workers.runtime.runtime_plan import RuntimePlan as PlanOfAWorker
from workers.runtime.synchronisation.kinds import KINDS

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


#: Gradients are on their way longer than the backward pass takes, and four layers wait for rows.
EXPERTS = {
    "layers": 4, "row_bytes": 2e8, "all_to_all_seconds": 0.05, "backward_all_to_all_seconds": 0.1,
    "expert_seconds": 0.02,
}  # fmt: skip
SCHEDULE = ("mode", "partition_bytes")
MIXTURE = [{"name": f"{number}.weight", "elements": 25_000_000, "gap_seconds": 0.3} for number in range(4)]


def with_shares(**shares: float) -> None:
    rate = {"bytes_per_second": 5e8, "latency_seconds": 1e-5}
    names = ("within_server", "network", "spine", "host_to_device", "disk")
    Server.objects.update(links={**dict.fromkeys(names, rate), "shares": shares})


@pytest.mark.parametrize(
    ("shares", "mode"), [({}, "bounded_overlap"), ({"experts": 0.24, "gradients": 0.055}, "leader")]
)
def test_mixture_follows_linas_schedule_where_it_wins(
    servers: tuple[Server, Server], shares: dict[str, float], mode: str
) -> None:
    with_shares(**shares)
    job, _ = measured_job(servers[0], 1, 2, tensors=MIXTURE, other_seconds=1.0, experts=EXPERTS)
    make_plans(9)
    on_family(job, "lossless+moe")
    plan = GradientPlan.objects.get(family="lossless", gpus_per_server=2)
    assert (plan.planner, plan.codec, plan.messages["experts"]["mode"]) == ("lina", "none", mode)
    assert plan.speedup > 1.05
    generation = successor(job, (servers[0], 1), (servers[0], 2))
    (lina,) = generation.runtime_plan["synchronisers"]
    partition = plan.messages["experts"]["partition_bytes"]
    expected = {"mode": mode, "partition_bytes": partition, "packs": False}
    assert (lina["kind"], lina["choices"]) == ("lina", expected)
    (read,) = PlanOfAWorker.from_message(generation.runtime_plan).synchronisers
    KINDS[read.kind](read.choices)


GIB = 1 << 30
#: Each worker of two has half of eight experts; a level was measured with them.
SIZES = {
    "parameter_bytes": GIB, "dense_state_bytes": GIB, "on_host": False,
    "layers": [{"experts": 8, "state_bytes": GIB}],
}  # fmt: skip
MEASURED = 6 * GIB


@pytest.mark.parametrize(
    ("device", "on_host", "packs"),
    [
        (10 * GIB, False, {"packs": True, "expert_bytes": 8 * GIB}),
        (12 * GIB, False, {"packs": True, "expert_bytes": 10 * GIB}),
        (9 * GIB, False, {"packs": False}),
        # Hosts guarantee a worker less than the device has.
        (12 * GIB, True, {"packs": False}),
        (0, False, {"packs": False}),
    ],
)
def test_a_plan_packs_experts_within_the_memory_left(
    servers: tuple[Server, Server], device: int, on_host: bool, packs: dict[str, int]
) -> None:
    with_shares()
    Gpu.objects.update(memory_bytes=device)
    Server.objects.update(memory_bytes=4 * 9 * GIB)
    job, _ = measured_job(servers[0], 2, tensors=MIXTURE, other_seconds=1.0, experts=EXPERTS)
    unplanned = submission_curve(job)
    ScalingCurve.objects.filter(pk=unplanned.pk).update(mixture={**SIZES, "on_host": on_host})
    unplanned.levels.all().delete()
    unplanned.levels.create(
        gpus=2, iterations_per_second=1.0, memory_bytes=MEASURED, host_memory_bytes=MEASURED
    )
    make_plans(9)
    on_family(job, "lossless")
    (lina,) = successor(job, (servers[0], 1), (servers[0], 2)).runtime_plan["synchronisers"]
    assert {name: lina["choices"][name] for name in lina["choices"] if name not in SCHEDULE} == packs


def test_no_schedule_is_planned_beside_rows_of_embeddings(servers: tuple[Server, Server]) -> None:
    with_shares()
    row = {"name": "0.weight", "width": 100, "density": 0.1, "beta": 0.5, "skew": 0.1, "sums": []}
    measured_job(servers[0], 2, tensors=MIXTURE, sparse=[row], experts=EXPERTS)
    make_plans(9)
    for plan in GradientPlan.objects.all():
        assert "lina" not in {plan.planner, *(candidate["planner"] for candidate in plan.beaten)}
