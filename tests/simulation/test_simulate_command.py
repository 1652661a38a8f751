"""`manage.py simulate` as a person runs it: in a process of its own, without database, broker or
variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from simulation.reports.parquet import read_parquet

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {
    "policy", "trace", "seed", "jobs", "slo_jobs", "best_effort_jobs", "admitted", "declined",
    "deadlines_met",
    "deadline_satisfactory_ratio", "deadlines_met_bound", "admitted_late", "mean_jct_seconds",
    "mean_queuing_seconds",
    "best_effort_mean_jct_seconds", "makespan_seconds", "mean_gpu_utilisation", "mean_cluster_efficiency",
    "rescales", "migrations", "preemptions", "simulated_seconds", "wall_seconds", "setup_seconds",
    "peak_memory_bytes", "decisions", "decision_ms_p50", "decision_ms_p99", "voided", "preemption_ratio",
    "shortfall_servers_max",
}  # fmt: skip
CLUSTER = ("--servers", "2", "--gpus-per-server", "4")


def bare_environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "NUMBA_CACHE_DIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "simulate", *arguments],
        cwd=ROOT, env=bare_environment(), capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


def test_a_synthetic_workload_is_simulated_and_written_in_every_form(tmp_path: Path) -> None:
    done = simulate(
        "--trace", "elasticflow:jobs=30", *CLUSTER, "--json", str(tmp_path / "run.json"),
        "--report", str(tmp_path / "run.html"), "--parquet", str(tmp_path / "run"), "--check",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "run.json").read_text())
    assert set(facts) >= FIELDS
    assert (facts["policy"], facts["jobs"], facts["admitted_late"]) == ("punctual", 30, 0)
    assert facts["admitted"] + facts["declined"] == 30
    assert f"deadlines met      {facts['deadlines_met']} of 30" in done.stdout
    assert "<html" in (tmp_path / "run.html").read_text()
    assert read_parquet(tmp_path / "run").jobs.end.count("completed") == facts["admitted"]


def test_the_summary_alone_can_go_to_a_program() -> None:
    done = simulate("--trace", "elasticflow:jobs=10", *CLUSTER, "--policy", "tiresias", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policy"] == "tiresias"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "no-such-trace", *CLUSTER), "no-such-trace"),
        (("--trace", "elasticflow:jobs=x", *CLUSTER), "jobs"),
        (
            ("--trace", "elasticflow", "--servers", "0", "--gpus-per-server", "4"),
            "--servers must be at least 1",
        ),
        (("--trace", "elasticflow", *CLUSTER, "--slot-seconds", "0"), "--slot-seconds must be above 0"),
        (
            ("--trace", "elasticflow", *CLUSTER, "--failures", "nothing.csv"),
            "nothing.csv is neither a file nor",
        ),
        (("--trace", "elasticflow", *CLUSTER, "--policy", "best"), "invalid choice: 'best'"),
        (("--trace", "elasticflow", *CLUSTER, "--gpu-type", "A100:many"), "TYPE:SERVERS"),
        (("--trace", "elasticflow", *CLUSTER, "--gpu-type", "A100:2,A100:3"), "names A100 twice"),
        (
            ("--trace", "elasticflow:jobs=4", *CLUSTER, "--policy", "edf", "--newcomers", "prudent"),
            "policy edf keeps no room for newcomers; prudent newcomers go with elasticflow, punctual",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError) as refusal:
        call_command("simulate", *arguments)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_ctrl_c_leaves_the_results_of_the_time_until_then(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "simulate", "--trace", "itp_large:jobs=30000", "--servers", "64",
        "--gpus-per-server", "8",
         "--json", str(tmp_path / "run.json")],
        cwd=ROOT, env=bare_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "simulating 30000 jobs" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["interrupted"]
    assert "interrupted" in output + errors
    assert process.returncode != 0
