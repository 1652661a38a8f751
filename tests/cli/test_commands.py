"""The command line as a person or a script sees it: one-line errors, exit codes, plain output, questions."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.wrappers import Request

from punctual.cli import main, output
from punctual.cli.follow import status_text
from punctual.client.models import JobFacts
from tests.cli.conftest import Run
from tests.cli.fake_platform import FakePlatform, function_document, job_document, page, problem, time_in

JOB = "abcdefghjkmn"
SUBMIT = ("submit", "train@1", "--batch-size", "256", "--iterations", "500", "--deadline", "20m")


# --- errors and exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("frobnicate",), 2, "frobnicate"),
        (("submit",), 2, "FUNCTION"),
        (("submit", "missing.py", "-b", "1", "-n", "1"), 2, "missing.py"),
        (("submit", "train", "-n", "5"), 2, "batch"),
        (("submit", "train", "-b", "5"), 2, "iterations"),
        (("submit", "train", "-b", "0", "-n", "1"), 2, "batch-size"),
        (("submit", "train", "-b", "1", "-n", "1", "--gpus", "8"), 2, "--deadline"),
        (("submit", "train", "-b", "1", "-n", "1", "--num-workers", "8"), 2, "--deadline"),
        (("submit", "train", "-b", "1", "-n", "1", "--deadline", "soon"), 2, "20m"),
        (("submit", "train", "-b", "1", "-n", "1", "--set", "lr"), 2, "NAME=VALUE"),
        (("submit", "train", "-b", "1", "-n", "1", "--set", "a=1", "--set", "a=2"), 2, "twice"),
        (("submit", "train", "-b", "1", "-n", "1", "--set", "a=NaN"), 2, "not finite"),
        (("submit", "train", "-b", "1", "-n", "1", "--target", "good"), 2, "METRIC>=NUMBER"),
        (("submit", "train", "-b", "1", "-n", "1", "--name", "a\udcff"), 2, "an argument is not UTF-8 text"),
        (("what-if", "train", "-b", "1", "-n", "1", "--link", "nan", "-p", "p"), 2, "cannot be sent"),
        (("submit", "train", "-b", "1", "-n", "1", "--class", "gold"), 2, "slo"),
        (("submit", "train", "-b", "1", "-n", "1", "--follow", "--wait"), 2, "exclude"),
        (("job", "nosuchjob"), 4, "check the name"),
        (("jobs", "--submitted-after", "yesterday"), 2, "2030"),
        (("deadline", JOB, "none", "--class", "slo"), 2, "slo"),
        (("servers", "until", "node-1", "banana"), 2, "bad end of the server: “banana” is not a duration"),
        (("servers", "until", "node-1", "0s"), 2, "bad end of the server"),
        (("tokens", "create", "ci", "--expires", "banana"), 2, "bad end of the token"),
        (("--profile", "nobody", "jobs"), 2, "nobody"),
    ],
)
def test_errors_have_one_line_a_hint_and_a_documented_exit_code(
    platform: FakePlatform, run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    platform.answers[f"GET jobs/{JOB}/"] = job_document()
    outcome = run(*arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1), outcome.err
    assert outcome.err.startswith("Error: ")
    assert words in outcome.err


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 3), (403, 4), (404, 4), (409, 1), (429, 1), (500, 5)]
)
def test_refusals_of_the_platform_have_their_exit_codes(
    platform: FakePlatform, run: Run, status: int, code: int
) -> None:
    platform.answers[f"GET jobs/{JOB}/"] = lambda _: problem(status, detail="first line\nsecond line")
    outcome = run("job", JOB)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert "first line second line" in outcome.err


def test_a_platform_that_does_not_answer_is_exit_code_5(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNCTUAL_RETRY_SECONDS", "0")
    outcome = run("--url", "http://127.0.0.1:9", "jobs")
    assert outcome.code == 5
    assert "is the platform running there?" in outcome.err


def test_without_a_login_the_error_names_the_login_command(run: Run) -> None:
    outcome = run("jobs")
    assert (outcome.code, outcome.err.count("\n")) == (3, 1)
    assert "punctual login" in outcome.err


WORDS = st.sampled_from(
    ["submit", "what-if", "jobs", "job", "logs", "deadline", "tokens", "projects", "members", "add",
    "cluster", "clone",
     "servers", "drain", "login", "logout", "artifacts", "--json", "--deadline", "--set", "-b", "-n",
     "--label", "--url",
     "--target", "--help", "--download", "--expires", "create", "-1", "1e999", "a=b", "{}", "../..", "~",
     "\0", "\x1b[2J"]
) | st.text(max_size=12)  # fmt: skip


@given(st.lists(WORDS, max_size=7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_arguments_give_no_traceback_and_at_most_one_error_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUNCTUAL_RETRY_SECONDS", "0")
    monkeypatch.setenv("PUNCTUAL_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code = main(arguments)
    captured = capsys.readouterr()
    assert code in (0, 1, 2, 3, 4, 5)
    assert "Traceback" not in captured.err
    assert "\x1b" not in captured.out + captured.err
    assert len([line for line in captured.err.splitlines() if line.startswith("Error")]) <= 1


def test_an_internal_error_is_one_line_as_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("punctual.cli.session.choose", broken)
    outcome = run("jobs")
    assert (outcome.code, outcome.err.count("\n")) == (70, 1)
    assert "ZeroDivisionError" in outcome.err


# --- functions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (None, "none"),
        ({"state": "pending", "builds_before": 3}, "pending, 3 builds before"),
        ({"state": "pending", "builds_before": 0}, "pending"),
        ({"state": "building", "building_since": "2030-01-31T14:30:05Z"}, "building since 2030-01-31 14:30"),
        ({"state": "failed"}, "failed"),
    ],
)
def test_functions_are_listed_with_their_requirements(
    platform: FakePlatform, run: Run, requirements: dict[str, Any] | None, words: str
) -> None:
    platform.answers["GET functions/"] = page(function_document(requirements=requirements))
    assert words in run("functions").out


@pytest.mark.parametrize(
    ("command", "request_line"),
    [
        ("requirements", "GET functions/1/versions/2/"),
        ("build", "POST functions/1/versions/2/environment/build/"),
        ("cancel-build", "POST functions/1/versions/2/environment/cancel/"),
    ],
)
def test_requirements_are_shown_built_and_cancelled(
    platform: FakePlatform, run: Run, command: str, request_line: str
) -> None:
    shown = {"state": "failed", "error": "not installed", "log": "no pandas\n"}
    platform.answers |= {
        "GET functions/": page(function_document(version=2)),
        request_line: function_document(version=2, requirements=shown),
    }
    outcome = run("functions", command, "train")
    assert outcome.code == 0, outcome.err
    assert outcome.out == "train@2  requirements: failed\nnot installed\nno pandas\n"
    assert len(platform.requests(request_line)) == 1


# --- submitting ---------------------------------------------------------------------------------------------


def test_options_become_the_body_of_a_job(platform: FakePlatform, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("class Train: ...\n")
    platform.answers |= {"POST functions/": function_document(version=3), "POST jobs/": job_document()}
    outcome = run(
        "submit", str(tmp_path / "train.py"), "--deadline", "1h30m", "--batch-size", "256", "--iterations",
        "500",
        "--set", "learning_rate=0.1", "--set", "name=resnet", "--set", "deep=true", "--set", "layers=[2, 4]",
        "--class", "soft", "--name", "nightly", "--label", "team=vision", "--data",
        "images=https://host/i.tar",
        "--data", "words=/data/words", "--target", "accuracy >= 0.9", "--seed", "7", "--checkpoint-seconds",
        "30", "--replicas", "3", "--protect-every", "10",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert platform.requests("POST jobs/")[0].json == {
        "function": "train@3",
        "project": "vision",
        "name": "nightly",
        "service_class": "soft",
        "labels": {"team": "vision"},
        "hyperparameters": {
            "learning_rate": 0.1, "name": "resnet", "deep": True, "layers": [2, 4], "global_batch_size": 256,
        },
        "termination": {"max_iterations": 500, "target": {"metric": "accuracy", "at_least": 0.9}},
        "data": [{"name": "images", "url": "https://host/i.tar"}, {"name": "words", "path": "/data/words"}],
        "checkpoint_seconds": 30.0,
        "protection": {"replicas": 3, "frequency": 10},
        "seed": 7,
        "deadline_seconds": 5400.0,
    }  # fmt: skip


def test_the_class_follows_from_the_deadline(platform: FakePlatform, run: Run) -> None:
    platform.answers["POST jobs/"] = job_document()
    run(*SUBMIT)
    run("submit", "train", "-b", "1", "-n", "1")
    assert [seen.json["service_class"] for seen in platform.requests("POST jobs/")] == ["slo", "best_effort"]


def test_a_wrong_option_uploads_nothing(platform: FakePlatform, run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("class Train: ...\n")
    assert run("submit", str(tmp_path / "train.py"), "-b", "1", "-n", "1", "-d", "never").code == 2
    assert platform.seen == []


def offered() -> dict[str, Any]:
    offer = {"deadline_at": time_in(1800), "valid_until": time_in(120)}
    return job_document("declined", verdict={"offer": offer, "reason": "Needs 8 GPUs, had 4."})


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_person_is_asked_whether_to_accept_the_offer(
    platform: FakePlatform, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    platform.answers |= {
        "POST jobs/": offered(),
        f"POST jobs/{JOB}/accept-offer/": job_document(id="successor", resubmission_of=JOB),
    }
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda: answer, raising=False)
    outcome = run(*SUBMIT)
    assert outcome.code == code
    assert "Declined: Needs 8 GPUs, had 4. Accept" in outcome.err
    assert outcome.err.rstrip().endswith("instead? [y/N]")
    assert platform.counted[f"POST jobs/{JOB}/accept-offer/"] == (code == 0)


def test_ctrl_c_at_the_question_names_the_command_to_accept(
    platform: FakePlatform, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    platform.answers["POST jobs/"] = offered()
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", interrupt, raising=False)
    outcome = run(*SUBMIT)
    assert outcome.code == 130
    assert f"punctual accept {JOB}" in outcome.err


def test_an_offer_is_declined(platform: FakePlatform, run: Run) -> None:
    platform.answers |= {f"GET jobs/{JOB}/": offered(), f"POST jobs/{JOB}/decline-offer/": offered()}
    outcome = run("decline", JOB)
    assert (outcome.code, "nothing is held" in outcome.out) == (0, True)
    assert run("decline", JOB, "--json").code == 0
    assert platform.counted[f"POST jobs/{JOB}/decline-offer/"] == 2


def test_cancelling_several_jobs_continues_after_a_refusal(platform: FakePlatform, run: Run) -> None:
    platform.answers |= {
        f"GET jobs/{JOB}/": job_document(),
        f"POST jobs/{JOB}/cancel/": job_document("cancelled"),
    }
    outcome = run("cancel", "nosuchjob", JOB)
    assert (outcome.code, outcome.out) == (4, f"Job {JOB} is cancelled.\n")
    assert outcome.err.startswith("Error: job nosuchjob: ")


def test_a_script_gets_the_accept_command_instead_of_a_question(platform: FakePlatform, run: Run) -> None:
    platform.answers["POST jobs/"] = offered()
    outcome = run(*SUBMIT)
    assert outcome.code == 1
    assert f"punctual accept {JOB}" in outcome.out
    as_json = run(*SUBMIT, "--json")
    assert (as_json.code, json.loads(as_json.out)["state"]) == (1, "declined")


def test_detaching_does_not_wait_for_the_verdict(platform: FakePlatform, run: Run) -> None:
    platform.answers["POST jobs/"] = job_document("submitted")
    outcome = run(*SUBMIT, "--detach")
    assert (outcome.code, f"punctual follow {JOB}" in outcome.out) == (0, True)
    assert platform.requests("POST jobs/")[0].query == {}


# --- following ----------------------------------------------------------------------------------------------


def training(platform: FakePlatform, states: list[dict[str, Any]]) -> None:
    """Let the job go through the documents, one per request."""
    looks = iter(states)
    last = states[-1]
    platform.answers[f"GET jobs/{JOB}/"] = lambda _: next(looks, last)
    platform.answers[f"GET jobs/{JOB}/events/"] = page(
        {"id": 1, "happened_at": time_in(0), "kind": "running", "message": "Trains on 4 GPUs.", "actor": ""}
    )
    platform.answers[f"GET jobs/{JOB}/metrics/"] = page(
        {"iteration": 250, "values": {"loss": 0.5}, "iterations_per_second": 10.0, "gpus": 4}
    )


RUNNING = {"iterations_done": 250, "progress": 0.5, "iterations_per_second": 10.0, "gpus": 4}
COMPLETED = {
    "iterations_done": 500,
    "progress": 1.0,
    "finished_at": time_in(0),
    "final_metrics": {"loss": 0.25},
}


def test_following_in_a_pipe_prints_plain_lines_through_an_outage(platform: FakePlatform, run: Run) -> None:
    training(platform, [job_document("running", **RUNNING), job_document("completed", **COMPLETED)])
    platform.trouble.extend([None, None, None, None, "drop", 503])
    outcome = run("follow", JOB)
    assert outcome.code == 0, outcome.err
    assert "running 250/500 · 4 GPUs · 10.00 it/s · loss 0.5 · planned to end" in outcome.out
    assert "before deadline" in outcome.out
    assert outcome.out.count("Trains on 4 GPUs.") == 1
    assert "Final metrics: loss 0.25" in outcome.out
    assert "\x1b" not in outcome.out


def test_following_shows_the_planned_finish_not_the_present_pace(platform: FakePlatform, run: Run) -> None:
    """At 0.1 iterations a second 250 take 2,500 s, far beyond the deadline, but the plan adds GPUs in
    time."""
    slow = {**RUNNING, "iterations_per_second": 0.1, "gpus": 1, "slack_seconds": 300.0}
    training(platform, [job_document("running", **slow), job_document("completed", **COMPLETED)])
    outcome = run("follow", JOB)
    assert "AFTER deadline" not in outcome.out
    assert "(5 min before deadline)" in outcome.out


def test_a_job_that_missed_says_so_when_it_is_followed_and_shown(platform: FakePlatform, run: Run) -> None:
    text = "The promise was missed: it ended 2 min after its deadline. Its work took longer than planned."
    missed = {**COMPLETED, "slack_seconds": -120.0, "promise_outcome": "missed", "late": True}
    missed["standing"] = {"code": "missed", "text": text}
    training(platform, [job_document("running", **RUNNING), job_document("completed", **missed)])
    assert text in run("follow", JOB).out
    assert text in run("job", JOB).out


def test_following_as_json_gives_one_document_a_line(platform: FakePlatform, run: Run) -> None:
    training(platform, [job_document("running", **RUNNING), job_document("completed", **COMPLETED)])
    lines = [json.loads(line) for line in run("follow", JOB, "--json").out.splitlines()]
    assert [line["job"]["state"] for line in lines if "job" in line] == ["running", "completed"]
    assert [line["event"]["kind"] for line in lines if "event" in line] == ["running"]


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("failed", 1), ("cancelled", 1)])
def test_the_exit_code_of_waiting_shows_how_the_job_ended(
    platform: FakePlatform, run: Run, state: str, code: int
) -> None:
    failure = (
        {"reason": "function_error", "message": "Traceback:\nValueError: bad\n"}
        if state == "failed"
        else None
    )
    training(platform, [job_document(state, **COMPLETED, failure=failure)])
    platform.answers["POST jobs/"] = job_document("running")
    outcome = run(*SUBMIT, "--wait")
    assert outcome.code == code
    assert ("ValueError: bad" in outcome.out) == (state == "failed")


def in_terminal(
    platform: FakePlatform, *arguments: str, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run the command in its own terminal; return its exit code and the terminal's output."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("NO_COLOR", None)  # the user may have set it
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "160", **(environment or {})})
        os.execv(sys.executable, [sys.executable, "-m", "punctual", *arguments])
    received = b""
    try:
        while piece := os.read(terminal, 65536):
            received += piece
    except OSError:
        pass  # Linux raises this when the other side of a terminal is closed
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), received.decode()


def test_following_in_a_terminal_draws_a_bar(platform: FakePlatform) -> None:
    training(platform, [job_document("running", **RUNNING), job_document("completed", **COMPLETED)])
    code, screen = in_terminal(platform, "follow", JOB)
    assert code == 0, screen
    assert "250/500" in screen
    assert "4 GPUs · 10.00 it/s · loss 0.5" in screen
    assert "\x1b[" in screen


def test_a_narrow_terminal_shows_the_progress(platform: FakePlatform) -> None:
    training(platform, [job_document("running", **RUNNING), job_document("completed", **COMPLETED)])
    _, screen = in_terminal(platform, "follow", JOB, environment={"COLUMNS": "60"})
    assert "running" in screen
    assert "250/500" in screen


def test_no_color_is_honoured_and_names_cannot_control_the_terminal(platform: FakePlatform) -> None:
    platform.answers["GET jobs/"] = page(
        job_document("failed", name="evil\x1b[2J\x1b]0;title\x07\x9b2J[bold red]name")
    )
    _, coloured = in_terminal(platform, "jobs")
    _, plain = in_terminal(platform, "jobs", environment={"NO_COLOR": "1"})
    assert "\x1b[31m" in coloured
    assert "\x1b[31m" not in plain
    for screen in (coloured, plain):
        assert "\x1b[2J" not in screen
        assert "\x1b]0;" not in screen
        assert "\x9b" not in screen
    assert "[bold red]name" in plain


@pytest.mark.parametrize("columns", ["80", "160"])
def test_a_narrow_terminal_shows_fewer_columns_in_full(platform: FakePlatform, columns: str) -> None:
    platform.answers["GET jobs/"] = page(job_document("running", name="image-classifier"))
    _, screen = in_terminal(platform, "jobs", environment={"COLUMNS": columns, "NO_COLOR": "1"})
    assert "image-classifier" in screen
    assert "…" not in screen
    assert ("PROMISE" in screen, "START" in screen) == (True, columns == "160")


def test_a_filtered_list_without_jobs_says_that_none_matches(platform: FakePlatform, run: Run) -> None:
    platform.answers["GET jobs/"] = page()
    assert run("jobs", "--state", "running").err == "No job matches.\n"
    assert run("jobs").err.startswith("No jobs. Submit one")


def test_a_failed_job_shows_no_slack(platform: FakePlatform, run: Run) -> None:
    platform.answers["GET jobs/"] = page(job_document("failed", slack_seconds=600.0, at_risk=True))
    shown = run("jobs").out
    assert "10 min" not in shown
    assert "at risk" not in shown


def test_logs_of_several_workers_name_the_worker_on_each_line(platform: FakePlatform, run: Run) -> None:
    platform.answers[f"GET jobs/{JOB}/"] = job_document("running")
    chunks = [(1, 0, "epoch "), (2, 1, "ready\n"), (3, 0, "1\nhalf"), (4, 0, " a line")]
    platform.answers[f"GET jobs/{JOB}/logs/"] = {
        "results": [{"id": n, "rank": rank, "generation": 1, "text": text} for n, rank, text in chunks],
        "next_after": 4,
        "more": False,
    }
    assert run("logs", JOB).out.splitlines() == ["[1] ready", "[0] epoch 1", "[0] half a line"]


def test_long_logs_are_read_in_several_requests(platform: FakePlatform, run: Run) -> None:
    def logs(request: Request) -> dict[str, Any]:
        after = int(request.args.get("after", 0))
        results = [{"id": after + 1, "rank": 0, "generation": 1, "text": f"line {after + 1}\n"}]
        return {"results": results, "next_after": after + 1, "more": after < 2}

    platform.answers |= {f"GET jobs/{JOB}/": job_document("running"), f"GET jobs/{JOB}/logs/": logs}
    assert run("logs", JOB).out.splitlines() == ["line 1", "line 2", "line 3"]


def test_ctrl_c_detaches_and_names_the_command_to_follow_again(platform: FakePlatform) -> None:
    looked = threading.Event()

    def job(_: Request) -> dict[str, Any]:
        if platform.counted[f"GET jobs/{JOB}/"] >= 2:
            looked.set()
        return job_document("running", **RUNNING)

    training(platform, [job_document("running")])
    platform.answers[f"GET jobs/{JOB}/"] = job
    process = subprocess.Popen(
        [sys.executable, "-m", "punctual", "follow", JOB],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert looked.wait(60)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error == f"Detached; job {JOB} goes on. Reattach: punctual follow {JOB}\n"


def test_output_that_is_not_utf_8_shows_question_marks(platform: FakePlatform) -> None:
    platform.answers["GET jobs/"] = page(job_document(name="größe"))
    command = [sys.executable, "-m", "punctual", "jobs"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"gr??e" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("arguments", [("jobs",), ("jobs", "--json")])
def test_a_closed_output_pipe_has_an_exit_code_of_its_own(
    platform: FakePlatform, arguments: tuple[str, ...]
) -> None:
    platform.answers["GET jobs/"] = page(job_document())
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "punctual", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


# --- other --------------------------------------------------------------------------------------------------


def test_ids_of_jobs_are_completed_by_the_shell(platform: FakePlatform) -> None:
    platform.answers["GET jobs/"] = page(job_document(), job_document(id="zzz"))
    environment = os.environ | {
        "_PUNCTUAL_COMPLETE": "complete_bash",
        "COMP_WORDS": "punctual job abc",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from punctual.cli import main; sys.exit(main())"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [JOB]


def test_importing_the_function_api_loads_no_client_or_command_line() -> None:
    code = (
        "import sys; sys.modules['httpx'] = sys.modules['typer'] = sys.modules['rich'] = None\n"
        "import punctual; punctual.TrainingFunction\n"
        "assert not any(name.startswith(('punctual.client', 'punctual.cli')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("submit", "--help"),
        ("tokens", "--help"),
        ("projects", "members", "-h"),
        ("servers", "drain", "-h"),
    ],
)
def test_every_command_has_a_help_text(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 0
    assert "Usage: punctual" in outcome.out


def test_the_version_is_printed(run: Run) -> None:
    assert run("version").out.startswith("punctual ")
    assert run("--version").out == run("version").out
    assert "python" in json.loads(run("version", "--json").out)


def test_work_without_a_finish_at_its_pace_shows_no_date() -> None:
    """The plan's finish is shown, and no date if the plan has none."""
    facts: dict[str, Any] = {"state": "running", "iterations_per_second": 0.01}
    endless = JobFacts("one", termination={"max_iterations": 10**10}, planned_finish_at=None, **facts)
    assert "end" not in status_text(endless, None)
    soon = JobFacts("one", termination={"max_iterations": 10}, planned_finish_at=datetime.now(UTC), **facts)
    assert "planned to end" in status_text(soon, None)
