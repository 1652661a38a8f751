"""Staff can read studies and runs in the admin but change nothing."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from simulation.models import SimulationStudy
from tests.factories import UserFactory


def test_studies_and_runs_are_shown_and_cannot_be_changed(start: Callable[..., SimulationStudy]) -> None:
    study = start()
    run = study.runs.first()
    assert run is not None
    client = Client()
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    for pages, row in (("simulationstudy", study.pk), ("simulationrun", run.pk)):
        listed = client.get(f"/admin/simulation/{pages}/")
        assert listed.status_code == 200
        assert f"/admin/simulation/{pages}/{row}/change/" in listed.content.decode()
        assert client.get(f"/admin/simulation/{pages}/{row}/change/").status_code == 200
        assert client.post(f"/admin/simulation/{pages}/{row}/change/", {"name": "other"}).status_code == 403
        assert client.get(f"/admin/simulation/{pages}/{row}/delete/").status_code == 403
        assert client.get(f"/admin/simulation/{pages}/add/").status_code == 403
