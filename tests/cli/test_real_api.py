"""The command line against the real API on a real database, with a cluster that decides and trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from projects.models import ApiToken, Project, Role, User
from projects.services import token_issue
from scheduling.models import Job
from tests.cli.conftest import Outcome, Run
from tests.cli.living_cluster import WEIGHTS, LivingCluster, eventually
from tests.factories import PASSWORD, JobFactory, MembershipFactory, UserFactory

# The first plan may have to compile the planner.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

CODE = '''
from punctual import TrainingFunction


class Train(TrainingFunction):
    """Learns."""

    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...
'''


@pytest.fixture
def ada(transactional_db: None) -> User:
    person = User.objects.create_user("ada", password=PASSWORD)
    MembershipFactory(role=Role.OWNER, user=person, project__name="vision")
    return person


@pytest.fixture
def cluster(transactional_db: None) -> Iterator[LivingCluster]:
    with LivingCluster() as living:
        yield living


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    return str(path)


@pytest.fixture
def logged_in(ada: User, live_server: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """Log Ada in; return the address of the platform."""
    return log_in(run, live_server.url, "ada", monkeypatch)


def log_in(run: Run, url: str, username: str, monkeypatch: pytest.MonkeyPatch) -> str:
    class Typed:
        def isatty(self) -> bool:
            return False

        def readline(self) -> str:
            return f"{PASSWORD}\n"

    monkeypatch.setattr("sys.stdin", Typed())
    outcome = run("login", url, "--username", username, "--password-stdin")
    assert outcome.code == 0, outcome.err
    return url


def submit(run: Run, script: str, *more: str) -> dict[str, Any]:
    outcome = run("submit", script, "-b", "64", "-n", "1000", *more, "--json")
    assert outcome.code in (0, 1), outcome.err
    return dict(json.loads(outcome.out))


def test_logging_in_stores_a_token_and_logging_out_revokes_it(logged_in: str, run: Run) -> None:
    assert "ada" in run("whoami").out
    assert ApiToken.objects.filter(revoked_at__isnull=True).count() == 1
    assert "Logged out" in run("logout").out
    assert not ApiToken.objects.filter(revoked_at__isnull=True).exists()
    outcome = run("whoami")
    assert (outcome.code, outcome.err.count("\n")) == (3, 1)
    assert "punctual login" in outcome.err


def test_a_wrong_password_is_refused_in_one_line(
    ada: User, live_server: Any, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr("sys.stdin.readline", lambda: "wrong\n", raising=False)
    outcome = run("login", live_server.url, "-u", "ada", "--password-stdin")
    assert (outcome.code, outcome.err.count("\n")) == (3, 1)
    assert "run `punctual login`" not in outcome.err


def test_a_job_is_submitted_promised_trained_and_downloaded(
    logged_in: str, cluster: LivingCluster, run: Run, script: str, tmp_path: Path
) -> None:
    outcome = run(
        "submit", script, "--deadline", "20m", "--batch-size", "64", "--iterations", "1000", "--set",
        "learning_rate=0.1",
        "--set", "name=resnet", "--label", "team=vision", "--seed", "3", "--name", "first", "--follow",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "admitted, promised" in outcome.out
    assert "Completed" in outcome.out
    assert "before its deadline" in outcome.out
    assert "\x1b" not in outcome.out + outcome.err

    job = Job.objects.get()
    assert job.hyperparameters == {"global_batch_size": 64, "learning_rate": 0.1, "name": "resnet"}
    assert (job.seed, job.labels, job.name) == (3, {"team": "vision"}, "first")

    assert "epoch 1\n" in run("logs", job.pk).out
    assert run("logs", job.pk, "--tail", "1").out.endswith("0.25\n")
    assert "running" in run("events", job.pk).out
    assert "34.00" in run("curve", job.pk).out
    assert "0.25" in run("metrics", job.pk).out
    assert "weights.pt" in run("artifacts", job.pk).out
    downloaded = run("artifacts", job.pk, "--download", str(tmp_path / "result"))
    assert downloaded.code == 0, downloaded.err
    assert (tmp_path / "result" / "weights.pt").read_bytes() == WEIGHTS
    shown = run("job", job.pk).out
    assert "Promise" in shown
    assert "met" in shown
    assert run("plan", job.pk).code == 0
    assert run("checkpoints", job.pk).code == 0
    assert "The job has not failed." in run("recoveries", job.pk).err
    assert "iterations done" in run("memory-point", job.pk).out


def test_an_offer_is_accepted_later_or_at_once(
    logged_in: str, cluster: LivingCluster, run: Run, script: str
) -> None:
    assert submit(run, script, "--deadline", "20m", "--wait")["state"] == "completed"
    declined = run("submit", script, "-b", "64", "-n", "1000", "--deadline", "3s")
    assert declined.code == 1
    assert "declined" in declined.out
    job_id = Job.objects.get(state="declined").pk
    assert f"punctual accept {job_id}" in declined.out

    accepted = run("accept", job_id, "--wait")
    assert accepted.code == 0, accepted.err
    assert "admitted, promised" in accepted.out
    assert Job.objects.get(resubmission_of=job_id).state == "completed"
    assert run("accept", job_id).code == 1, "an offer is taken once"

    cluster.endless = True
    taken = submit(run, script, "--deadline", "3s", "--yes")
    assert (taken["state"] in ("admitted", "running"), bool(taken["resubmission_of"])) == (True, True)


def test_a_job_is_rescheduled_paused_resumed_cloned_and_cancelled(
    logged_in: str, cluster: LivingCluster, run: Run, script: str
) -> None:
    cluster.endless = True
    job_id = submit(run, script, "--deadline", "20m")["id"]
    eventually(lambda: Job.objects.get(pk=job_id).state == "running")
    later = run("deadline", job_id, "40m")
    assert later.code == 0, later.err + later.out
    sooner = run("deadline", job_id, "1s")
    assert sooner.code == 1
    assert "declined. " in sooner.out
    assert "and its promise." in sooner.out
    assert "paused" in run("pause", job_id).out
    assert run("resume", job_id).code == 0
    clone = run("clone", job_id, "--deadline", "30m", "--set", "learning_rate=0.5", "--json")
    assert clone.code == 0, clone.err
    assert json.loads(clone.out)["hyperparameters"] == {"global_batch_size": 64, "learning_rate": 0.5}
    cancelled = run("cancel", job_id, json.loads(clone.out)["id"])
    assert cancelled.out.count("is cancelled") == 2
    assert run("cancel", job_id).code == 1
    assert run("follow", job_id).code == 1


def test_what_if_answers_without_a_job_and_jobs_are_listed(
    logged_in: str, cluster: LivingCluster, run: Run, script: str
) -> None:
    assert "No jobs" in run("jobs").err
    unknown = run("what-if", script, "-b", "64", "-n", "1000", "-d", "20m")
    assert "measured first" in unknown.out
    first = submit(run, script, "--deadline", "20m", "--label", "team=vision", "--wait")["id"]
    assert "admitted" in run("what-if", "train@1", "-b", "64", "-n", "1000", "-d", "20m").out
    refused = run("what-if", "train", "-b", "64", "-n", "1000", "-d", "3s", "--json")
    assert (refused.code, json.loads(refused.out)["decision"]) == (1, "declined")
    assert Job.objects.count() == 1

    second = submit(run, script, "--name", "nightly")["id"]
    table = run("jobs").out
    assert table.index(second) < table.index(first)
    assert listed(run, "--state", "completed", "--label", "team=vision") == [first]
    assert listed(run, "--search", "nightly") == [second]
    assert listed(run, "--promised") == [first]
    assert len(listed(run, "--limit", "1")) == 1
    assert run("jobs", "--state", "sleeping").code == 2


def listed(run: Run, *options: str) -> list[str]:
    return [job["id"] for job in json.loads(run("jobs", *options, "--json").out)]


def test_a_gpu_count_is_refused_with_the_reason(logged_in: str, run: Run, script: str) -> None:
    option = run("submit", script, "-b", "64", "-n", "10", "--gpus", "4")
    assert option.code == 2
    assert "deadline" in option.err
    hidden = run("submit", script, "-b", "64", "-n", "10", "--set", "num_gpus=4")
    assert (hidden.code, hidden.err.count("\n")) == (2, 1)
    assert "num_gpus" in hidden.err


def test_functions_are_uploaded_once_and_versioned(logged_in: str, run: Run, script: str) -> None:
    assert "train@1" in run("functions", "upload", script).out
    assert "train@1" in run("functions", "upload", script).out
    Path(script).write_text(CODE + "# changed\n")
    assert "train@2" in run("functions", "upload", script).out
    assert "train@2" in run("functions").out
    assert len(json.loads(run("functions", "versions", "train", "--json").out)) == 2
    Path(script).write_text("class Train(:\n")
    broken = run("functions", "upload", script)
    assert (broken.code, broken.err.count("\n")) == (2, 1)
    assert "line 1" in broken.err


def test_a_folder_is_uploaded_as_a_zip(logged_in: str, run: Run, script: str, tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    folder.mkdir()
    Path(script).rename(folder / "train.py")
    (folder / "helper.py").write_text("x = 1\n")
    assert "classifier@1  train:Train" in run("functions", "upload", str(folder)).out


def test_tokens_are_listed_created_rotated_and_revoked(logged_in: str, run: Run) -> None:
    created = json.loads(run("tokens", "create", "for the robot", "--expires", "30d", "--json").out)
    assert created["token"]
    assert created["expires_at"]
    rows = {token["name"]: token for token in json.loads(run("tokens", "--json").out)}
    own = next(token for name, token in rows.items() if name.startswith("punctual on"))
    assert "this one" in run("tokens").out
    assert run("tokens", "revoke", str(rows["for the robot"]["id"])).code == 0
    rotated = run("tokens", "rotate", str(own["id"]))
    assert rotated.code == 0, rotated.err
    assert run("whoami").code == 0, "the new token of the login is stored"
    assert run("tokens", "revoke", "999999").code == 4


def test_a_limited_token_works_within_its_scope_and_logs_out(logged_in: str, run: Run) -> None:
    created = json.loads(
        run("tokens", "create", "watcher", "--scope", "read", "--project", "vision", "--json").out
    )
    assert (created["scopes"], created["projects"]) == (["read"], ["vision"])
    assert "read" in run("tokens").out
    assert run("--profile", "watcher", "login", logged_in, "--token", created["token"]).code == 0
    assert run("--profile", "watcher", "jobs").code == 0
    refused = run("--profile", "watcher", "tokens", "create", "more")
    assert refused.code == 4
    assert "manage" in refused.err
    assert run("--profile", "watcher", "logout").code == 0
    assert "watcher" not in run("tokens").out


def make_token(user: Any) -> str:
    return token_issue(user=user, name="test")[1]


def test_projects_and_members_are_managed(logged_in: str, run: Run) -> None:
    bob = UserFactory(username="bob")
    assert run("projects", "create", "speech", "--description", "Voices").code == 0
    assert "speech" in run("projects").out
    assert run("projects", "members", "add", "speech", "bob").code == 4, "people are asked"
    assert "invited" in run("projects", "members", "invite", "speech", "bob").out
    token = make_token(bob)
    assert run("--profile", "bob", "login", logged_in, "--token", token).code == 0
    (waiting,) = json.loads(run("--profile", "bob", "invitations", "--json").out)
    assert waiting["project"] == "speech"
    assert "member" in run("--profile", "bob", "invitations", "accept", str(waiting["id"])).out
    assert run("invitations", "--project", "speech").code == 0
    assert "viewer" in run("projects", "members", "role", "speech", "bob", "viewer").out
    assert "bob" in run("projects", "members", "list", "speech").out
    assert run("projects", "members", "remove", "speech", "bob").code == 0
    assert run("projects", "members", "remove", "speech", "ada").code == 1, "the last owner stays"
    assert Project.objects.get(name="speech").memberships.count() == 1
    assert run("projects", "archive", "speech").code == 0
    assert "speech" not in run("projects").out
    assert run("projects", "restore", "speech").code == 0
    assert run("projects", "delete", "speech").code == 0
    assert run("projects", "delete", "speech").code == 4


def test_operators_manage_accounts(logged_in: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("users").code == 4, "operators alone"
    token = make_token(UserFactory(username="root", is_operator=True))
    assert run("--profile", "root", "login", logged_in, "--token", token).code == 0

    def users(*arguments: str) -> Outcome:
        return run("--profile", "root", "users", *arguments)

    created = users("create", "bob", "--project", "vision", "--role", "viewer")
    assert created.code == 0, created.err
    password = created.out.strip()
    assert User.objects.get(username="bob").check_password(password)
    assert "not shown again" in created.err
    assert "vision (viewer)" in users("list").out
    assert users("create", "bob").code == 1, "the name is taken"
    assert users("create", "b b").code == 2
    monkeypatch.setattr("sys.stdin", StringIO(f"{PASSWORD} twice\n"))
    document = json.loads(users("reset-password", "bob", "--password-stdin", "--json").out)
    assert document == {"username": "bob", "password": None}
    assert User.objects.get(username="bob").check_password(f"{PASSWORD} twice")
    monkeypatch.setattr("sys.stdin", StringIO("weak\n"))
    refused = users("reset-password", "bob", "--password-stdin")
    assert refused.code == 2
    assert "weak" not in refused.err
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert users("create", "eve", "--password-stdin").code == 2
    assert "disabled" in users("disable", "bob").out
    assert "disabled" in users().out
    assert "enabled" in users("enable", "bob").out
    assert users("disable", "root").code == 1, "the last operator stays"
    assert json.loads(users("promote", "bob", "--json").out)["is_operator"] is True
    assert "no operator" in users("demote", "bob").out
    assert users("disable", "nobody").code == 4


def test_with_two_projects_the_project_must_be_named(
    ada: User, live_server: Any, run: Run, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MembershipFactory(user=ada, project__name="speech")
    log_in(run, live_server.url, "ada", monkeypatch)
    unclear = run("functions", "upload", script)
    assert unclear.code == 2
    assert "speech, vision" in unclear.err
    assert run("functions", "upload", script, "--project", "speech").code == 0
    monkeypatch.setenv("PUNCTUAL_PROJECT", "vision")
    assert run("functions", "upload", script).code == 0


def test_the_cluster_is_shown_and_steered_by_operators_alone(
    logged_in: str, cluster: LivingCluster, run: Run, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: "node-1" in run("cluster").out)
    assert "4 x emulated-test (emulated)" in run("cluster").out
    assert run("servers", "drain", "node-1").code == 4
    assert run("agents", "token").code == 4
    UserFactory(username="olga", is_operator=True)
    log_in(run, live_server.url, "olga", monkeypatch)
    assert run("servers", "drain", "node-1", "--reason", "new fans").code == 0
    assert "--force" not in run("servers", "drain", "node-1").err
    assert "new fans" in run("servers").out
    assert json.loads(run("servers", "undrain", "node-1", "--json").out)["drain"] == "none"
    assert run("servers", "drain", "node-9").code == 4
    assert run("servers", "standby", "1").code == 2, "one server alone cannot stand by"
    assert json.loads(run("servers", "standby", "0", "--json").out)["pools"][0]["ready"] == []
    assert len(run("agents", "token", "--server", "node-2").out.strip()) > 20
    agent = json.loads(run("agents", "--json").out)[0]
    assert agent["server_name"] == "node-1"


def test_draining_a_server_lists_the_promises_that_would_break(
    logged_in: str, cluster: LivingCluster, run: Run, script: str, ada: User
) -> None:
    cluster.endless = True
    job_id = submit(run, script, "--deadline", "20m")["id"]
    eventually(lambda: Job.objects.get(pk=job_id).state == "running")
    User.objects.filter(pk=ada.pk).update(is_operator=True)
    refused = run("servers", "drain", "node-1")
    assert refused.code == 1
    assert job_id in refused.out
    assert "--force" in refused.err
    assert run("servers", "drain", "node-1", "--force").code == 0


def test_objects_of_strangers_are_not_found(
    logged_in: str, ada: User, run: Run, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobFactory.create(owner=ada, project=Project.objects.get(name="vision"))
    assert job.name in run("job", job.pk).out
    MembershipFactory(user__username="stranger", project__name="elsewhere")
    log_in(run, live_server.url, "stranger", monkeypatch)
    for command in ("job", "logs", "events", "cancel", "artifacts", "follow", "accept", "curve"):
        outcome = run(command, job.pk)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (4, "", 1), command
