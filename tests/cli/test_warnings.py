"""Warnings of the command line about useless results."""

from __future__ import annotations

from punctual.cli.follow import ending
from punctual.client.models import JobFacts
from tests.cli.conftest import Run
from tests.cli.fake_platform import FakePlatform, job_document, page

JOB = "abcdefghjkmn"


def test_a_job_with_nan_weights_says_so_wherever_it_is_shown(run: Run, platform: FakePlatform) -> None:
    warning = "The final weights are useless: 1 of 2 tensors hold NaN or infinite values (0.weight)."
    document = job_document("completed", warning=warning)
    platform.answers[f"GET jobs/{JOB}/"] = document
    platform.answers["GET jobs/"] = page(document)
    assert warning in " ".join(run("job", JOB).out.split())
    assert "not finite" in run("jobs").out
    assert warning in list(ending(JobFacts(JOB, state="completed", warning=warning)))
