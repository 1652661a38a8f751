"""Planners of mixtures of experts over REST: worked examples, bounds and errors."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.models import Gpu
from tests.api.conftest import World

pytestmark = pytest.mark.django_db

SHAPE = {"vocabulary": 50304, "hidden": 4096, "layers": 12, "experts": 128}
DEVICE = {"gpu_bytes": 640e9, "cpu_bytes": 1e12, "ssd_bytes": 8e12}
TABLE_3 = [{"batch": batch} for batch in (512, 256, 128, 128)]
MEASURED = {"fixed_seconds": 0.9435, "seconds_per_load": 6.1444e-3}
V6_RATES = {"within": 100e9, "leaf": 10e9, "spine": 5e9, "within_latency": 2e-6, "between_latency": 1e-5}
V8 = {"layers": 6, "layer_bytes": 3.0, "gpu_bytes": 9.0, "compute_seconds": 2.0, "host_bytes_per_second": 1.0}

GANG = {"gpus": 1, "layers": 1, "tokens_per_rank": 1, "hidden": 1}


def ask(world: World, what: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = world.client(world.viewer).post(f"/api/v1/moe/{what}/", body, format="json")
    assert answer.status_code == status, answer.content
    return answer.json()


@pytest.mark.parametrize(
    ("alpha", "disk", "servers", "binding"),
    [(0.25, 8e12, 1, "gpu"), (0.5, 8e12, 2, "cpu"), (1.0, 8e12, 4, "cpu"), (0.25, 2e12, 2, "ssd")],
)
def test_v1_over_rest(world: World, alpha: float, disk: float, servers: int, binding: str) -> None:
    body = SHAPE | {"alpha": alpha, "strict_paper": True, "device": DEVICE | {"ssd_bytes": disk}}
    answer = ask(world, "fit", body)
    assert (answer["n_min"], answer["binding"]) == (servers, binding)
    assert answer["bytes"]["ssd"] == pytest.approx(2473.901e9, rel=1e-6)


def test_fit_counts_gpus_without_tiers(world: World) -> None:
    answer = ask(world, "fit", SHAPE | {"activation_bytes": 12.4e9, "device": DEVICE})
    assert (answer["n_min"], answer["gpus_without_tiers"]) == (4, 128)
    huge = ask(world, "fit", {"dense": 1e15, "sparse": 0, "layers": 1, "experts": 1, "device": DEVICE})
    assert (huge["gpus_without_tiers"], huge["binding"]) == (None, "gpu")


@pytest.mark.parametrize(("gpus", "quota", "held"), [(1, 1024, 1), (3, 512, 2), (6, 256, 4), (8, 128, 8)])
def test_v5_over_rest(world: World, gpus: int, quota: float, held: int) -> None:
    answer = ask(world, "elastic", {"tasks": TABLE_3, "gpus": gpus})
    assert (answer["q"], answer["gpus"]) == (quota, held)
    assert sum(sum(group["batch"]) for group in answer["groups"]) == 1024


def test_the_worked_admission_over_rest(world: World) -> None:
    body = {"tasks": TABLE_3, "mode": "deadline", "gpus": 8, "step_cost": MEASURED, "steps": 100}
    answer = ask(world, "elastic", body | {"deadline_seconds": 260})
    assert (answer["gpus"], answer["q"], answer["util"], answer["meets_deadline"]) == (4, 256, 1.0, True)
    assert answer["step_seconds"] == pytest.approx(2.517, abs=1e-3)
    assert ask(world, "elastic", body | {"deadline_seconds": 180})["gpus"] == 8
    assert ask(world, "elastic", body | {"deadline_seconds": 1})["meets_deadline"] is False


def test_v6_over_rest(world: World) -> None:
    """1 MB between every pair of ranks on two servers of four GPUs."""
    servers = [{"id": name, "free_gpus": 4} for name in ("a", "b")]
    body = {"gpus": 8, "layers": 1, "tokens_per_rank": 1000, "hidden": 4000, "servers": servers}
    (answer,) = ask(world, "placement", body | {"rates": V6_RATES})
    (usual,) = ask(world, "placement", body | {"rates": {"leaf": 10e9}})
    assert usual["hier"] > answer["hier"] / 2
    assert answer["nodes"] == ["a", "b"]
    assert (answer["flat"], answer["hier"]) == (pytest.approx(740e-6), pytest.approx(476e-6))
    assert (answer["algo"], answer["score"]) == ("hierarchical", pytest.approx(4 * 476e-6))


def test_placements_use_the_free_gpus_of_the_cluster(world: World) -> None:
    free = Gpu.objects.for_training().usable().exclude(assignments__state__in=("held", "clearing"))
    assert free.count()
    answer = ask(world, "placement", GANG)
    names = set(free.values_list("server__name", flat=True))
    assert {name for placement in answer for name in placement["nodes"]} == names
    assert ask(world, "placement", GANG | {"gpu_kind": "none such"}) == []
    assert ask(world, "placement", GANG | {"gpus": 4096}) == []


def test_v8_over_rest(world: World) -> None:
    answer = ask(world, "ring", V8 | {"pinning": "none"})
    assert (answer["K"], answer["first_pass"], answer["steady"], answer["k_min"]) == (3, 13.0, 18.0, 4)
    assert ask(world, "ring", V8 | {"pinning": "none", "sections": 2})["first_pass"] == 16.0
    slow = ask(world, "ring", V8 | {"latency_seconds": 13.0})
    assert (slow["is_admitted"], slow["binding"], slow["remedy"], slow["remedy_gpus"]) == (
        False, "deadline", "gpus", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "body", "field"),
    [
        ("fit", SHAPE | {"device": DEVICE, "alpha": 1.2}, "alpha"),
        ("fit", SHAPE | {"device": DEVICE | {"gpu_bytes": 0}}, "device.gpu_bytes"),
        ("fit", SHAPE | {"device": DEVICE, "tiers": ["gpu", "ssd"]}, "tiers"),
        ("fit", SHAPE | {"device": DEVICE, "dense": 1.0}, "dense"),
        ("fit", SHAPE, "device"),
        ("elastic", {"tasks": [{"batch": -1}], "gpus": 1}, "tasks"),
        ("elastic", {"tasks": [{"batch": 0}], "gpus": 1}, "tasks"),
        ("elastic", {"tasks": TABLE_3}, "gpus"),
        ("elastic", {"tasks": TABLE_3, "mode": "sideways"}, "mode"),
        ("elastic", {"tasks": [{"batch": 1}] * 65, "gpus": 1}, "tasks"),
        ("elastic", {"tasks": [{"batch": 10**9}, {"batch": 1}], "mode": "up"}, "quota"),
        ("placement", GANG | {"rates": {"spine": 0}}, "rates.spine"),
        ("ring", V8 | {"sections": 0}, "sections"),
        ("ring", V8 | {"host_bytes_per_second": 0}, "host_bytes_per_second"),
        ("ring", V8 | {"layers": 10**6}, "layers"),
        ("ring", V8 | {"surprise": 1}, "surprise"),
    ],
)  # fmt: skip
def test_an_error_names_the_field(world: World, what: str, body: dict[str, Any], field: str) -> None:
    answer = ask(world, what, body, 400)
    assert any(name.startswith(field) for name in answer["errors"]), answer


def test_the_largest_questions_are_answered(world: World) -> None:
    tasks = [{"batch": 1 + 977 * number % 5000} for number in range(64)]
    assert ask(world, "elastic", {"tasks": tasks, "gpus": 4096})["gpus"] <= 4096
    servers = [{"id": f"s{n}", "free_gpus": 1 + n % 8, "cluster": f"c{n % 40}"} for n in range(128)]
    body = {"gpus": 512, "layers": 1, "tokens_per_rank": 1e4, "hidden": 4096, "servers": servers}
    assert ask(world, "placement", body)
    ring = V8 | {"layers": 256, "gpu_bytes": 600.0, "latency_seconds": 1e-9}
    assert ask(world, "ring", ring)["remedy"] == "computation"
