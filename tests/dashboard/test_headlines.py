"""The headline of a job's page about its deadline once it has ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from scheduling.models import Job
from tests.dashboard.scenario import Scenario


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"promise_outcome": "missed", "late": True},
            "The promise was missed: it ended 2 min after its deadline.",
        ),
        (
            {"promise_outcome": "none", "promised": False, "late": True},
            "Late: it ended 2 min after its deadline",
        ),
        (
            {"promise_outcome": "void", "void_reason": "paused_by_owner"},
            "The promise is void: its owner paused it.",
        ),
    ],
)
def test_a_jobs_headline_says_what_became_of_its_deadline(
    scenario: Scenario, as_user: Callable[[Any], Client], facts: dict[str, Any], words: str
) -> None:
    """The verdict of its admission is shown beneath, as the answer of that time."""
    job = scenario.completed
    reason = "8 GPUs are enough."
    verdict = {"decision": "admitted", "reason_code": "fits", "reason": reason}
    assert job.finished_at is not None
    deadline = job.finished_at - timedelta(seconds=120)
    Job.objects.filter(pk=job.pk).update(verdict=verdict, deadline_at=deadline, **facts)
    page = as_user(scenario.owner).get(f"/jobs/{job.id}/").content.decode()
    paragraphs = re.findall(r'<p class="verdict[^"]*">(.*?)</p>', page, re.DOTALL)
    lines = [" ".join(re.sub("<[^>]+>", "", paragraph).split()) for paragraph in paragraphs]
    assert words in lines[0]
    assert lines[1].startswith(f"Decision: Admitted: {reason}")


def test_a_jobs_headline_says_that_its_weights_are_not_finite(
    scenario: Scenario, as_user: Callable[[Any], Client]
) -> None:
    job = scenario.completed
    weights = {"tensors": 1, "of": 2, "names": ["<b>0.weight"]}
    Job.objects.filter(pk=job.pk).update(nonfinite={"weights": weights})
    page = as_user(scenario.owner).get(f"/jobs/{job.id}/").content.decode()
    assert "The final weights are useless: 1 of 2 tensors hold NaN" in page
    assert "&lt;b&gt;0.weight" in page
    assert "Not finite" in as_user(scenario.owner).get("/jobs/").content.decode()
