"""The stand-in service of the submission benchmark accepts exactly what the platform accepts."""

from __future__ import annotations

from typing import Any

from scheduling.models import Job
from tests.api.conftest import World


def test_the_peer_inserts_the_row_of_a_submission(world: World, settings: Any) -> None:
    settings.ROOT_URLCONF = "benchmarks.peers.insert_only_urls"
    before = Job.objects.count()
    answer = world.client(world.colleague).post("/insert/", world.body(name="peer"), format="json")
    assert answer.status_code == 201, answer.content
    assert Job.objects.count() == before + 1
