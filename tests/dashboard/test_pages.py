"""The pages as HTML: who sees what, which texts appear, and that no outside text is ever markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Agent, Cluster, Server
from dashboard.figures import JOB_DETAIL_PANELS, JOB_PANELS, OVERVIEW_PANELS, SERVERS_PANELS
from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from projects.models import Role
from scheduling.choices import JobState
from scheduling.models import Environment, Job
from scheduling.selectors.cluster.planner_presence import COMPILING_FILE
from scheduling.services.long_work.environments import BUILDS
from tests import factories
from tests.dashboard.scenario import Scenario

LogIn = Callable[[Any], Client]
PAGES = ["/", "/jobs/", "/servers/", "/decisions/"]
HOSTILE = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>'


def every_address(job_id: str) -> list[str]:
    return [
        *PAGES,
        f"/jobs/{job_id}/",
        f"/jobs/{job_id}/log/",
        *(f"/panels/{name}/" for name in OVERVIEW_PANELS),
        *(f"/servers/panels/{name}/" for name in SERVERS_PANELS),
        *(f"/jobs/{job_id}/panels/{name}/" for name in JOB_PANELS | JOB_DETAIL_PANELS),
        *(f"/?fragment={name}" for name in ("tiles", "queue", "agents")),
        "/jobs/?fragment=table",
        "/servers/?fragment=cards",
        "/servers/?fragment=codecs",
        "/decisions/?fragment=decisions",
        *(f"/jobs/{job_id}/?fragment={name}" for name in ("summary", "events", "files")),
    ]


def test_every_page_is_there_without_foreign_or_inline_scripts(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.owner)
    jobs = (scenario.running, scenario.declined, scenario.completed, scenario.failed, scenario.waiting)
    for address in sorted({address for job in jobs for address in every_address(job.id)}):
        answer = client.get(address)
        assert answer.status_code == 200, address
        _expect_policy(answer, address)
        if answer.headers["Content-Type"].startswith("text/html"):
            text = answer.content.decode()
            assert not re.search(r"<script(?![^>]*\bsrc=)", text), address
            assert not re.search(r"\son\w+=", text), address
            assert not re.search(r'(?:src|href)="(?:https?:)?//', text), address
    _expect_policy(client.get("/login/"), "/login/")


def _expect_policy(answer: Any, address: str) -> None:
    policy = answer.headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "script-src 'self';", "frame-ancestors 'none'"):
        assert part in policy, address
    assert "unsafe-eval" not in policy, address


def test_every_page_is_there_in_an_empty_installation(db: None, as_user: LogIn) -> None:
    client = as_user(factories.UserFactory.create())
    for address in every_address("nosuchjob"):
        expected = 404 if "nosuchjob" in address else 200
        assert client.get(address).status_code == expected, address
    assert "Submit your first job" in client.get("/").content.decode()
    assert "punctual submit" in client.get("/jobs/").content.decode()


def test_without_a_session_pages_redirect_and_panels_answer_401(scenario: Scenario, client: Client) -> None:
    for address in every_address(scenario.running.id):
        answer = client.get(address)
        if "fragment" in address or "panels" in address or "log" in address:
            assert answer.status_code == 401, address
        else:
            assert answer.status_code == 302, address
            assert answer.headers["Location"].startswith("/login/?next="), address


def test_pages_accept_only_get(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.operator)
    for address in every_address(scenario.running.id):
        for method in (client.post, client.put, client.patch, client.delete):
            assert method(address).status_code == 405, address


def test_a_strangers_job_does_not_exist(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.stranger)
    for address in every_address(scenario.running.id):
        if scenario.running.id in address:
            assert client.get(address).status_code == 404, address


def test_pages_reveal_no_job_of_a_foreign_project(scenario: Scenario, as_user: LogIn) -> None:
    sentence = f"2 GPUs less than needed, or {scenario.foreign.id} would be late"
    scenario.running.verdict = {"reason": sentence}
    scenario.running.save()
    scenario.running.generations.update(reason=sentence)
    factories.JobEventFactory.create(job=scenario.running, message=sentence)
    decision = factories.DecisionFactory.create(
        trigger=f"{scenario.foreign.id} completed",
        summary={"changes": [{"job": scenario.running.id, "kind": "grow", "reason": sentence}]},
    )
    decision.jobs.add(scenario.running)
    client = as_user(scenario.owner)
    for address in every_address(scenario.running.id):
        text = client.get(address).content.decode()
        assert scenario.foreign.name not in text, address
        assert scenario.foreign.id not in text, address
    assert "busy" in client.get("/servers/").content.decode()
    assert "would be late" in client.get(f"/jobs/{scenario.running.id}/").content.decode()
    assert scenario.foreign.id in as_user(scenario.operator).get("/decisions/").content.decode()


def test_an_operator_sees_every_job(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.operator)
    assert scenario.foreign.name in client.get("/jobs/").content.decode()
    assert scenario.foreign.name in client.get("/servers/").content.decode()


def test_only_operators_are_offered_to_drain(scenario: Scenario, as_user: LogIn) -> None:
    assert "data-drain" not in as_user(scenario.owner).get("/servers/").content.decode()
    assert "data-drain" in as_user(scenario.operator).get("/servers/").content.decode()


def test_only_operators_are_offered_to_set_a_servers_end(scenario: Scenario, as_user: LogIn) -> None:
    Server.objects.filter(pk=scenario.servers[0].pk).update(
        available_until=timezone.now() + timedelta(days=2)
    )
    assert "data-end" not in as_user(scenario.owner).get("/servers/").content.decode()
    page = as_user(scenario.operator).get("/servers/").content.decode()
    assert page.count("Set an end") == len(scenario.servers) - 1
    assert page.count("Change its end") == page.count("Stays for good") == 1


def test_a_viewer_is_not_offered_to_cancel(scenario: Scenario, as_user: LogIn) -> None:
    viewer = factories.MembershipFactory.create(project=scenario.project, role=Role.VIEWER).user
    client = as_user(viewer)
    for address in ("/jobs/", f"/jobs/{scenario.running.id}/", f"/jobs/{scenario.declined.id}/"):
        assert "data-post" not in client.get(address).content.decode()
    client = as_user(scenario.owner)
    assert f"/api/v1/jobs/{scenario.running.id}/cancel/" in client.get("/jobs/").content.decode()
    assert "accept-offer" in client.get(f"/jobs/{scenario.declined.id}/").content.decode()


def test_texts_from_agents_and_users_are_escaped_everywhere(scenario: Scenario, as_user: LogIn) -> None:
    job = scenario.running
    job.name = HOSTILE[:200]
    job.labels = {HOSTILE: HOSTILE}
    job.hyperparameters = {HOSTILE: HOSTILE}
    job.verdict = {"reason": HOSTILE}
    job.failure = {"reason": HOSTILE, "message": HOSTILE, "traceback": HOSTILE}
    job.final_metrics = {HOSTILE: 1.0}
    job.save()
    factories.JobEventFactory.create(job=job, kind=HOSTILE[:40], message=HOSTILE, actor=HOSTILE[:100])
    factories.ArtifactFactory.create(job=job, name=HOSTILE)
    scenario.servers[0].gpus.update(kind=HOSTILE[:100])
    scenario.servers[0].hostname = scenario.servers[0].drain_reason = HOSTILE
    scenario.servers[0].save()
    client = as_user(scenario.operator)
    for address in every_address(job.id):
        answer = client.get(address)
        text = answer.content.decode()
        if answer.headers["Content-Type"].startswith("text/html"):
            assert "<img src=x" not in text, address
            assert "<script>" not in text, address
        elif "/panels/" in address:
            # Plotly interprets some HTML in texts, so names are passed without any.
            assert "<img" not in json.dumps(json.loads(text)), address


def test_bidirectional_controls_in_user_text_are_removed(scenario: Scenario, as_user: LogIn) -> None:
    job = scenario.running
    job.hyperparameters = {"name": "\u202egpj"}
    job.failure = {"reason": "user_error", "message": "bad\u202egpj", "traceback": "line\u2066\nline"}
    job.save()
    factories.JobEventFactory.create(job=job, kind="failed", message="bad\u202egpj")
    page = as_user(scenario.owner).get(f"/jobs/{job.id}/").content.decode()
    assert "gpj" in page
    assert not {"\u202e", "\u2066"} & set(page)


def test_user_chosen_keys_are_never_read_as_methods(scenario: Scenario, as_user: LogIn) -> None:
    """Templates look up a mapping's key before its method."""
    job, keys = scenario.running, ("items", "keys", "values", "get", "0")
    job.labels = {key: f"label-of-{key}" for key in keys}
    job.hyperparameters = {key: 17.25 + number for number, key in enumerate(keys)}
    job.final_metrics = {key: 0.8125 + number for number, key in enumerate(keys)}
    job.save()
    client = as_user(scenario.owner)
    table = client.get("/jobs/").content.decode()
    page = client.get(f"/jobs/{job.id}/").content.decode()
    for number, key in enumerate(keys):
        assert f"label-of-{key}" in table
        for shown in (
            f"{key}=label-of-{key}",
            f"<dt>{key}</dt><dd>{17.25 + number}</dd>",
            f"Final {key}</dt><dd>{0.8125 + number}<",
        ):
            assert shown in page, shown


def test_every_page_warns_while_an_agent_runs_without_a_sandbox(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.owner)
    for address in [*PAGES, f"/jobs/{scenario.running.id}/"]:
        assert "No sandbox on node-b" in client.get(address).content.decode()
    scenario.servers[1].sandbox = "user"
    scenario.servers[1].save()
    for address in PAGES:
        assert "No sandbox" not in client.get(address).content.decode()


def test_emulated_gpus_say_so_wherever_they_are_shown(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.owner)
    for address in ("/", "/servers/", f"/jobs/{scenario.running.id}/", "/panels/gpus-by-server/"):
        assert "emulated" in client.get(address).content.decode(), address
    assert "(emulated)" in client.get("/panels/gpus-by-server/").content.decode()


def test_a_server_shows_its_emulated_links_with_rates_and_load(scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.owner)
    assert "to other servers" not in client.get("/servers/").content.decode()
    server = scenario.servers[0]
    server.links = ServerLinks.from_message(DEFAULT_LINKS).to_message()
    server.save()
    Agent.objects.filter(server=server).update(link_load={"network": {"gradients": 2.5e8}})
    page = client.get("/servers/").content.decode()
    row = re.search(r"<tr><th[^>]*>to other servers</th>.*?</tr>", page)
    assert row is not None
    assert re.findall(r"<td>(.*?)</td>", row[0]) == ["1 GB/s", "1.0 ms", "gradients 250 MB/s"]
    assert re.search(r"<caption>Links.*emulated", page)


def test_a_declined_job_shows_the_reason_and_an_offer(scenario: Scenario, as_user: LogIn) -> None:
    text = as_user(scenario.owner).get(f"/jobs/{scenario.declined.id}/").content.decode()
    assert "8 GPUs would be needed" in text
    assert f"/api/v1/jobs/{scenario.declined.id}/accept-offer/" in text


def test_an_offer_that_ran_out_cannot_be_accepted_any_more(scenario: Scenario, as_user: LogIn) -> None:
    scenario.declined.offer.valid_until = timezone.now() - timedelta(seconds=1)
    scenario.declined.offer.save()
    text = as_user(scenario.owner).get(f"/jobs/{scenario.declined.id}/").content.decode()
    assert "accept-offer" not in text


def test_the_verdict_shows_its_minimum_satisfactory_share(scenario: Scenario, as_user: LogIn) -> None:
    text = as_user(scenario.owner).get(f"/jobs/{scenario.running.id}/").content.decode()
    assert "Minimum satisfactory share" in text
    assert "2 GPUs" in text


def test_a_job_that_waits_for_its_requirements_says_so(scenario: Scenario, as_user: LogIn) -> None:
    job, version = scenario.running, scenario.running.function_version
    version.requirements_digest = "e" * 64
    version.save()
    Job.objects.filter(pk=job.pk).update(state=JobState.SUBMITTED, verdict=None, decided_at=None)
    environment = Environment.objects.create(digest="e" * 64, requirements="x")
    client = as_user(scenario.owner)
    text = client.get(f"/jobs/{job.id}/").content.decode()
    assert "Its requirements are installed next." in text
    assert "Not decided yet" not in text
    attempt = BUILDS.attempt(environment.pk)
    assert attempt is not None
    attempt.renew(log="looking for <wheels>")
    text = client.get(f"/jobs/{job.id}/").content.decode()
    assert "Its requirements are being installed since" in text
    assert "looking for &lt;wheels&gt;" in text


def test_results_are_downloaded_from_the_api(scenario: Scenario, as_user: LogIn) -> None:
    text = as_user(scenario.owner).get(f"/jobs/{scenario.completed.id}/").content.decode()
    assert f"/api/v1/jobs/{scenario.completed.id}/artifacts/weights.pt/" in text


def test_decisions_show_a_members_jobs_and_count_the_others(scenario: Scenario, as_user: LogIn) -> None:
    text = as_user(scenario.owner).get("/decisions/").content.decode()
    assert "Its promise holds with 2" in text
    assert "1 job of other projects" in text
    assert "offer found after 6 attempts" not in text
    assert "/snapshot/" not in text
    operators = as_user(scenario.operator).get("/decisions/").content.decode()
    assert "offer found after 6 attempts" in operators
    assert "/snapshot/" in operators


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=running", {"running", "spanning"}),
        ("state=declined&state=failed", {"declined", "failed"}),
        ("promise=at_risk", {"spanning"}),
        ("promise=promised", {"running", "spanning"}),
        ("search=wide", {"running"}),
        ("search=team%3Dperception", {"running"}),
        ("class=best_effort&state=suspended", {"waiting"}),
        ("project=vision&state=suspended", {"waiting"}),
        ("project=speech", set()),
        ("search=%00&state=nonsense&class=x&promise=y&page=999999999999", None),
        ("search=%25_%27%22%3B&page=-1", set()),
    ],
)
def test_jobs_are_filtered(scenario: Scenario, as_user: LogIn, query: str, expected: set[str] | None) -> None:
    answer = as_user(scenario.owner).get(f"/jobs/?{query}")
    assert answer.status_code == 200
    if expected is not None:
        shown = set(re.findall(r'href="/jobs/([a-z0-9]{12})/"', answer.content.decode()))
        assert shown == {getattr(scenario, name).id for name in expected}


def test_jobs_come_in_pages_newest_first_and_keep_their_filter(scenario: Scenario, as_user: LogIn) -> None:
    for _ in range(60):
        factories.JobFactory.create(project=scenario.project, owner=scenario.owner, name="bulk")
    client = as_user(scenario.owner)
    first = client.get("/jobs/?search=bulk").content.decode()
    assert "1–25 of 60 jobs" in first
    assert "search=bulk&amp;page=2" in first
    assert "51–60 of 60 jobs" in client.get("/jobs/?search=bulk&page=3").content.decode()


@pytest.mark.parametrize(
    "address", ["/", "/jobs/", "/servers/", "/decisions/", "/panels/gpus-by-server/", "/panels/slack/"]
)
def test_the_number_of_queries_does_not_grow_with_the_rows(
    scenario: Scenario, as_user: LogIn, address: str
) -> None:
    client = as_user(scenario.owner)
    client.get(address)
    with CaptureQueriesContext(
        connection,
    ) as few:
        client.get(address)
    for _ in range(3):
        server = factories.ServerFactory.create()
        for gpu in server.gpus.all():
            job = factories.JobFactory.create(
                project=scenario.project, owner=scenario.owner, state=JobState.RUNNING
            )
            factories.GenerationFactory.create(job=job, gpus=[gpu], master_server=server)
            factories.JobFactory.create(project=scenario.project, owner=scenario.owner)
            decision = factories.DecisionFactory.create(
                summary={"verdicts": [{"job": job.id, "admitted": True}]}
            )
            decision.jobs.add(job)
    with CaptureQueriesContext(connection) as many:
        client.get(address)
    assert len(many) == len(few)


def test_guessing_passwords_is_slowed_down(db: None, client: Client) -> None:
    user = factories.UserFactory.create()
    right = {"username": user.username, "password": factories.PASSWORD}
    for _ in range(20):
        assert client.post("/login/", {**right, "password": "wrong"}).status_code == 200
    answer = client.post("/login/", right)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"]
    # Another address and another name are not affected.
    other = {"username": user.username.upper() + "x", "password": factories.PASSWORD}
    assert client.post("/login/", right, REMOTE_ADDR="192.0.2.7").status_code == 302
    client.logout()
    assert client.post("/login/", other).status_code == 200


def test_login_redirects_to_the_requested_page_of_this_site_only(db: None, client: Client) -> None:
    user = factories.UserFactory.create()
    form = {"username": user.username, "password": factories.PASSWORD}
    assert client.post("/login/", {**form, "next": "/servers/"}).headers["Location"] == "/servers/"
    client.logout()
    assert client.post("/login/", {**form, "next": "https://evil.example/"}).headers["Location"] == "/"


def test_the_stream_address_has_the_host_name_of_the_page(db: None, as_user: LogIn, settings: Any) -> None:
    settings.STREAM_URL = "http://127.0.0.1:8002"
    settings.ALLOWED_HOSTS = ["*"]
    client = as_user(factories.UserFactory.create())

    def address(host: str) -> str:
        answer = client.get("/stream-address/?stream=cluster", headers={"host": host})
        return str(answer.json()["address"]).partition("?")[0]

    page = client.get("/", headers={"host": "localhost:8000"})
    assert "connect-src 'self' http://localhost:8002;" in page.headers["Content-Security-Policy"]
    assert address("localhost:8000") == "http://localhost:8002/stream/cluster"
    settings.STREAM_URL = ""
    assert address("gpu.example:9000") == "http://gpu.example:9001/stream/cluster"
    settings.STREAM_URL = "https://streams.example"
    assert address("gpu.example") == "https://streams.example/stream/cluster"


def test_plotly_is_served_from_the_installed_package(client: Client) -> None:
    from django.contrib.staticfiles import finders

    found = finders.find("plotly/plotly.min.js")
    assert isinstance(found, str)
    assert "package_data" in found
    listed = [
        path
        for finder in finders.get_finders()
        for path, _ in finder.list([])
        if path.endswith("plotly.min.js")
    ]
    assert listed == ["plotly.min.js"]


def test_pages_say_when_planning_has_stopped_and_why(
    scenario: Scenario, as_user: LogIn, tmp_path: Path, settings: Any
) -> None:
    client = as_user(scenario.owner)

    def said(expires_in_seconds: float, *, compiling: bool = False) -> str:
        settings.DATA_DIR = tmp_path
        (tmp_path / "run").mkdir(exist_ok=True)
        marker = tmp_path / "run" / COMPILING_FILE
        marker.unlink(missing_ok=True)
        if compiling:
            marker.touch()
        until = timezone.now() + timedelta(seconds=expires_in_seconds)
        Cluster.objects.update(planner_lease_expires_at=until)
        texts = [client.get(address).content.decode() for address in (*PAGES, "/?fragment=planner")]
        found = {re.search("The planner has not run|being compiled", text) for text in texts}
        (word,) = {match and match[0] for match in found}
        return word or ""

    assert said(20.0) == ""
    assert said(-20.0) == "The planner has not run"
    assert said(-20.0, compiling=True) == "being compiled"
