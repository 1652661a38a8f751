"""Searching the jobs table."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any, Literal

import pytest
from django.test import Client

from scheduling.models import Job
from tests.dashboard.scenario import Scenario


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("search", ["modèle", "team=modèle"])
def test_jobs_are_found_in_either_spelling(
    scenario: Scenario, as_user: Callable[[Any], Client], search: str, form: Literal["NFC", "NFD"]
) -> None:
    job = scenario.completed
    Job.objects.filter(pk=job.pk).update(name="Le modèle", labels={"team": "modèle"})
    query = {"search": unicodedata.normalize(form, search)}
    page = as_user(scenario.owner).get("/jobs/", query).content.decode()
    assert f"/jobs/{job.id}/" in page


@pytest.mark.parametrize("query", [{"search": "x" * 20_000}, {f"a{number}": "1" for number in range(2_000)}])
def test_an_address_that_is_too_long_gets_a_page(client: Client, query: dict[str, str]) -> None:
    answer = client.get("/jobs/", query)
    assert (answer.status_code, "The address is too long" in answer.content.decode()) == (400, True)
