"""`manage.py simulate` in its own process, without database, broker or environment variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from simulation.engine.run import Simulation
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
    names = ("PATH", "HOME", "LANG", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}


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


def test_json_summary_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--trace", "elasticflow:jobs=10", *CLUSTER, "--policy", "tiresias")
    call_command("simulate", *arguments, "--json", "-")
    assert json.loads(capsys.readouterr().out)["policy"] == "tiresias"


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
        (("--trace", "elasticflow", *CLUSTER, "--replicas", "0"), "--replicas must be at least 1, not 0"),
        (("--trace", "elasticflow", *CLUSTER, "--recovery", "hope"), "invalid choice: 'hope'"),
        (("--trace", "elasticflow", *CLUSTER, "--policy", "best"), "invalid choice: 'best'"),
        (("--trace", "elasticflow", *CLUSTER, "--server-ends", "no.csv"), "no.csv is neither a file nor"),
        (("--trace", "elasticflow", *CLUSTER, "--server-ends", "-1"), "a number of ends a server and day"),
        (("--trace", "elasticflow", *CLUSTER, "--server-end-notice-seconds", "5"), "give --server-ends"),
        (
            ("--trace", "elasticflow", *CLUSTER, "--server-ends", "1", "--server-end-notice-seconds", "-5"),
            "must not be negative",
        ),
        (
            ("--trace", "elasticflow", "--server-ends", "1", *CLUSTER, "--gpu-type", "A100:2,V100:2"),
            "servers of one kind of GPU end",
        ),
        (("--trace", "elasticflow", *CLUSTER, "--server-memory-gb", "0"), "must be above 0"),
        (("--trace", "elasticflow", *CLUSTER, "--server-memory-gb", "no.csv"), "no.csv is neither a file"),
        (("--trace", "elasticflow", *CLUSTER, "--worker-memory-gb", "8"), "give that too"),
        (("--trace", "elasticflow", *CLUSTER, "--least-worker-memory-gb", "nan"), "must not be negative"),
        (
            ("--trace", "elasticflow", *CLUSTER, "--server-ends", "1", "--inference-servers", "2"),
            "one kind of GPU is borrowed at a time",
        ),
        (
            ("--trace", "lyra", *CLUSTER, "--policy", "lyra", "--server-ends", "1"),
            "is for jobs with measured curves",
        ),
        (("--trace", "elasticflow", *CLUSTER, "--gpu-type", "A100:many"), "TYPE:SERVERS"),
        (("--trace", "elasticflow", *CLUSTER, "--gpu-type", "A100:2,A100:3"), "names A100 twice"),
        (
            ("--trace", "elasticflow:jobs=4", *CLUSTER, "--policy", "edf", "--newcomers", "prudent"),
            "policy edf keeps no room for newcomers; prudent newcomers go with elasticflow, punctual",
        ),
    ],
)
def test_impossible_simulation_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError) as refusal:
        call_command("simulate", *arguments)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_ctrl_c_leaves_the_results_of_the_time_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Simulation._step
    steps: list[float] = []

    def press_at_the_fifth(simulation: Simulation, at: float) -> None:
        steps.append(at)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        step(simulation, at)

    # The few jobs of the warm-up take steps too, once in a process.
    monkeypatch.setattr("simulation.engine.run.load_kernels", lambda policy: None)
    monkeypatch.setattr(Simulation, "_step", press_at_the_fifth)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = ("--trace", "elasticflow:jobs=30", *CLUSTER, "--json", str(tmp_path / "run.json"))
    # Raised by a command, it ends the process with a code other than 0.
    try:
        with pytest.raises(CommandError, match="interrupted: the results are those of the time until then"):
            call_command("simulate", *arguments)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert len(steps) == 5
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["interrupted"]
    assert facts["simulated_seconds"] == steps[-1]
    assert "simulating 30 jobs" in capsys.readouterr().err


def test_server_ends_memory_and_worker_counts_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "throughput.csv").write_text(
        "gpu_type,model,global_batch_size,num_gpu,iterations_per_second,worker_memory_gb\n"
        "A100,experts,36,3,3.0,4\nA100,experts,36,6,5.0,40\n"
    )
    (tmp_path / "jobs.csv").write_text(
        "job_id,submitted_at,iterations,model,global_batch_size,service_class,deadline_at,requested_gpus,"
        "worker_counts\n"
        "first,0,3000,experts,36,best_effort,,3,3 6 12\nsecond,0,3000,experts,36,slo,2000,3,3 6 12\n"
    )
    (tmp_path / "ends.csv").write_text("server,ends_at_seconds,known_at_seconds\n1,300,60\n")
    (tmp_path / "memory.csv").write_text("server,memory_gb\n0,64\n1,64\n")
    out = tmp_path / "run"
    call_command(
        "simulate", "--trace", str(tmp_path / "jobs.csv"), "--throughputs", str(tmp_path / "throughput.csv"),
        "--servers", "2", "--gpus-per-server", "8", "--server-ends", str(tmp_path / "ends.csv"),
        "--server-memory-gb", str(tmp_path / "memory.csv"), "--parquet", str(out), "--check",
    )  # fmt: skip
    run = read_parquet(out)
    assert set(run.allocations.gpus.tolist()) == {0, 4}, "six workers would need 40 GB each"
    assert run.jobs.end == ("completed", "completed")
    assert run.settings["servers_that_end"] == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("server\n1\n", "no column ends_at_seconds"),
        ("server,ends_at_seconds\n7,300\n", "line 2: server lies between 0 and 1, not 7"),
        ("server,ends_at_seconds\none,300\n", "line 2: server is a whole number"),
        ("server,ends_at_seconds\n0,inf\n", "line 2: known_at_seconds is not negative"),
        ("server,ends_at_seconds,known_at_seconds\n0,5,6\n", "not after ends_at_seconds"),
        ("server,ends_at_seconds\n0,5\n0,6\n", "server 0 is there twice"),
    ],
)
def test_a_wrong_file_of_ends_is_refused_with_its_line(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "ends.csv").write_text(lines)
    with pytest.raises(CommandError, match=message) as refused:
        call_command(
            "simulate", "--trace", "elasticflow:jobs=3", *CLUSTER, "--server-ends", str(tmp_path / "ends.csv")
        )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("counts", "message"), [("3 six", "such as 3 6 12"), ("6 3", "ascending"), ("5", "none of")]
)
def test_impossible_worker_counts_are_refused_with_their_line(
    tmp_path: Path, counts: str, message: str
) -> None:
    (tmp_path / "throughput.csv").write_text(
        "gpu_type,model,global_batch_size,num_gpu,iterations_per_second\nA100,experts,36,3,3.0\n"
    )
    (tmp_path / "jobs.csv").write_text(
        "job_id,submitted_at,iterations,model,global_batch_size,service_class,deadline_at,requested_gpus,"
        f"worker_counts\nfirst,0,3000,experts,36,best_effort,,3,{counts}\n"
    )
    with pytest.raises(CommandError, match=message) as refused:
        call_command(
            "simulate", "--trace", str(tmp_path / "jobs.csv"), "--throughputs",
            str(tmp_path / "throughput.csv"), *CLUSTER,
        )  # fmt: skip
    assert "line 2" in str(refused.value)
    assert "worker_counts" in str(refused.value)
