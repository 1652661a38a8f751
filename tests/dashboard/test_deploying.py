"""A completed job is deployed from its page, by users who may and if its function defines `predict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import expect

from deployments.models import Deployment
from scheduling.choices import JobState
from scheduling.models import Job
from tests import factories
from tests.dashboard.scenario import Scenario
from tests.dashboard.site import Site
from tests.deployments.conftest import PREDICT, SOURCE

BUTTON = "data-deploy"


def define(job: Job, predict: str = PREDICT) -> Job:
    """Let the job's class define this method `predict`; an inference cluster exists."""
    content = SOURCE.format(number=job.pk, predict=predict).encode()
    version = factories.FunctionVersionFactory.create(
        function=factories.FunctionFactory.create(project=job.project, name="classifier"),
        bundle=factories.BundleFactory.create(content=content),
    )
    Job.objects.filter(pk=job.pk).update(function_version=version)
    factories.InferenceClusterFactory.create(name="serving", cluster=job.cluster)
    return job


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_completed_job_is_deployed_from_its_page(site: Site) -> None:
    job = define(site.scenario.completed)
    visit = site.visit(site.scenario.owner)
    page = visit.go(f"/jobs/{job.pk}/")
    page.get_by_role("button", name="Deploy").click()
    page.get_by_label("Servers now").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Deploy").click()
    expect(page.locator(".toast.bad")).to_contain_text("min <= wanted <= max")
    assert not Deployment.objects.exists()
    page.get_by_role("button", name="Deploy").click()
    page.get_by_label("Servers now").fill("2")
    page.get_by_label("Servers at most").fill("4")
    page.get_by_label("Latency target (ms)").fill("250")
    page.get_by_role("dialog").get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/deployments/*/")
    made = Deployment.objects.get()
    assert page.url == f"{site.url}/deployments/{made.pk}/"
    assert (made.minimum_servers, made.wanted_servers, made.maximum_servers) == (1, 2, 4)
    assert (made.latency_target_seconds, made.owner) == (0.25, site.scenario.owner)


def shows_button(client: Client, job: Job) -> bool:
    return BUTTON in client.get(f"/jobs/{job.pk}/?fragment=summary").content.decode()


@pytest.mark.django_db
def test_only_those_who_may_deploy_see_the_button(
    scenario: Scenario, as_user: Callable[[Any], Client]
) -> None:
    job = define(scenario.completed)
    viewer = factories.MembershipFactory.create(project=job.project, role="viewer").user
    assert shows_button(as_user(scenario.owner), job)
    assert shows_button(as_user(scenario.operator), job)
    assert not shows_button(as_user(viewer), job)


@pytest.mark.django_db
def test_jobs_that_cannot_be_deployed_have_no_button(
    scenario: Scenario, as_user: Callable[[Any], Client]
) -> None:
    owner = as_user(scenario.owner)
    job = define(scenario.completed, predict="")
    assert not shows_button(owner, job), "no predict"
    other = factories.JobFactory.create(project=job.project, owner=job.owner, state=JobState.COMPLETED)
    assert not shows_button(owner, other), "no weights"
    assert not shows_button(owner, scenario.running)


@pytest.mark.django_db
def test_a_session_without_its_csrf_token_deploys_nothing(scenario: Scenario) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(scenario.owner)
    job = define(scenario.completed)
    answer = client.post("/api/v1/deployments/", {"job": job.pk}, content_type="application/json")
    assert answer.status_code == 403
    assert not Deployment.objects.exists()
