"""`GET deployments/{id}/experts/`: the reports of a group of servers, and access to them."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from deployments.choices import ExpertHosting, ReplicaState, RolloutState
from deployments.models import Deployment, Replica, Rollout
from tests import factories as make
from tests.api.conftest import World

NOTHING: dict[str, Any] = {
    "generation": None,
    "reported_at": None,
    "servers": [],
    "layers": [],
    "layers_left_out": 0,
    "swaps": 0,
    "swap_seconds": 0.0,
    "waited_seconds": 0.0,
}
REPORT: dict[str, Any] = {
    "layers": [
        {
            "name": "moe",
            "rows": [60, 20],
            "expected": [70.0, 10.0],
            "hosts": [[0, 1], [1]],
            "passes": 8,
            "estimated": 4,
            "replaced": 1,
            "fullest_rows": 44,
            "fullest_rows_evenly": 60,
        }
    ],
    "layers_left_out": 0,
    "swaps": 3,
    "swap_seconds": 0.5,
    "waited_seconds": 0.1,
}


@pytest.fixture
def deployment(world: World) -> Deployment:
    """A deployment whose group of two servers has reported nothing."""
    made = Deployment.objects.create(
        project=world.project, owner=world.owner, inference_cluster=world.inference, name="mixture",
        minimum_servers=2, maximum_servers=2, wanted_servers=2, generation=1, experts=ExpertHosting.SPREAD,
        max_batch=16, max_wait_seconds=0.005,
    )  # fmt: skip
    version = world.job.function_version
    rollout = Rollout.objects.create(
        deployment=made, number=1, state=RolloutState.CURRENT, function_version=version, group_servers=2
    )
    for rank, name in enumerate(("serving-a", "serving-b")):
        server = make.InferenceServerFactory.create(
            name=name, cluster=world.server.cluster, inference_cluster=world.inference, gpus=1
        )
        Replica.objects.create(
            key=f"serve-{rank}", group="serve-0", rank=rank, deployment=made, rollout=rollout, server=server,
            gpu=server.gpus.get(), port=21000, state=ReplicaState.SERVING, told_version=1, secret=name,
        )  # fmt: skip
    return made


def test_a_group_shows_its_experts(world: World, deployment: Deployment) -> None:
    address = f"/api/v1/deployments/{deployment.pk}/experts/"
    viewer = world.client(world.viewer)
    before = viewer.get(address)
    assert (before.status_code, before.data) == (200, NOTHING)
    Replica.objects.filter(rank=0).update(experts=REPORT, counts_at=timezone.now())
    shown = viewer.get(address).data
    assert (shown["generation"], shown["servers"], shown["swaps"]) == (1, ["serving-a", "serving-b"], 3)
    (layer,) = shown["layers"]
    assert layer == {
        "name": "moe",
        "rows": [60, 20],
        "popularity": [0.75, 0.25],
        "predicted": [0.875, 0.125],
        "hosts": [[0, 1], [1]],
        "passes": 8,
        "estimated_passes": 4,
        "replaced_passes": 1,
        "replaced_share": 0.25,
        "load": 1.1,
        "even_load": 1.5,
    }
    Replica.objects.update(state=ReplicaState.GONE, gone_at=timezone.now())
    assert viewer.get(address).data == NOTHING, "a group that ended has no experts now"


def test_others_see_no_experts(world: World, deployment: Deployment) -> None:
    address = f"/api/v1/deployments/{deployment.pk}/experts/"
    assert world.client(world.stranger).get(address).status_code == 404
    assert world.client(None).get(address).status_code == 401
    assert world.client(world.owner).post(address, {}, format="json").status_code == 405
    assert world.client(world.owner).get("/api/v1/deployments/none/experts/").status_code == 404
