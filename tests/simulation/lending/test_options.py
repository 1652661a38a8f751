"""`manage.py simulate` with elastic jobs and servers on loan: what is usual, and what is refused in one line
(contracts 7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from scheduling.core.question.recording import pack_snapshot, unpack_snapshot
from scheduling.core.question.snapshot import PlannerSettings, Snapshot
from scheduling.core.question.two_phase_options import TwoPhaseOptions

CLUSTER = ("--servers", "2", "--gpus-per-server", "8")
LYRA = ("--trace", "lyra:jobs=12,mean_interarrival_seconds=600", *CLUSTER)
LENT = ("--inference-servers", "4")


def simulated(folder: Path, *arguments: str) -> dict[str, object]:
    """The summary of a run."""
    call_command("simulate", *arguments, "--json", str(folder / "run.json"))
    facts: dict[str, object] = json.loads((folder / "run.json").read_text())
    return facts


def settings_of(folder: Path, *arguments: str) -> dict[str, object]:
    settings = simulated(folder, *arguments)["settings"]
    assert isinstance(settings, dict)
    return settings


def test_the_profile_lyra_is_run_as_lyra_was_evaluated(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT)
    usual = {
        "slot_seconds": 30.0, "pauses": "none", "scenario": "basic", "scaling": True, "loaning": True,
        "expansion": 3,
        "inference_servers": 4, "inference_usage": "daily", "reclaim": "lyra", "forecaster": "persistence",
    }  # fmt: skip
    assert usual.items() <= settings.items()


def test_without_scenario_and_loans_nothing_is_different(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "--trace", "elasticflow:jobs=5", *CLUSTER, "--policy", "edf")
    assert (settings["slot_seconds"], settings["pauses"]) == (60.0, "measured")
    assert "scenario" not in settings
    assert "loaning" not in settings


def test_every_choice_reaches_the_run_and_its_report(tmp_path: Path) -> None:
    choices = (
        "--scenario", "advanced", "--reclaim", "scf", "--forecaster", "none", "--headroom", "0.1",
        "--expansion", "2",
        "--gain", "0.8", "--placement", "naive", "--knapsack", "single", "--shortest-by", "most", "--scaling",
        "off",
    )  # fmt: skip
    settings = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT, *choices)
    asked = {
        "scenario": "advanced", "reclaim": "scf", "forecaster": "none", "headroom": 0.1, "expansion": 2,
        "gain": 0.8,
        "naive": True, "single_knapsack": True, "shortest_at_most": True, "scaling": False,
    }  # fmt: skip
    assert asked.items() <= settings.items()


def test_every_open_choice_has_an_option(tmp_path: Path) -> None:
    choices = (
        "--count-owned-servers", "on", "--release", "fewest_workers", "--knapsack-value", "total",
        "--emptied-servers", "as_idle",
        "--elastic-moves", "on", "--retry-scattered", "freed", "--mixing-efficiency-alone", "0.7",
    )  # fmt: skip
    settings = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT, *choices)
    asked = {
        "count_owned_servers": True, "fewest_workers_first": True, "value_total_work": True,
        "emptied_as_idle": True,
        "elastic_moves": True, "retry_when_freed": True, "mixing_efficiency_alone": 0.7,
    }  # fmt: skip
    assert asked.items() <= settings.items()
    usual = (
        "--count-owned-servers", "off", "--release", "least_lost", "--knapsack-value", "remaining",
        "--emptied-servers", "last",
        "--elastic-moves", "off", "--retry-scattered", "tick", "--mixing-efficiency-alone", "1",
    )  # fmt: skip
    told = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT, *usual)
    assert not any(told.get(name) for name in asked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reclaim", "scf"), "--reclaim is about servers on loan: give --inference-servers"),
        (("--loaning", "on"), "--loaning on is about servers on loan"),
        (("--inference-servers", "0"), "--inference-servers must be at least 1, not 0"),
        ((*LENT, "--inference-usage", "no-such-curve"), "no-such-curve"),
        ((*LENT, "--headroom", "2"), "--headroom is a share from 0 to 1, not 2"),
        ((*LENT, "--gpu-type", "V100:1,T4:1"), "one pool of training servers"),
        ((*LENT, "--inference-gpu-type", "A100"), "--inference-gpu-type is about jobs with measured curves"),
        (("--inference-gpu-type", "T4"), "--inference-gpu-type is about servers on loan"),
        (("--expansion", "0"), "--expansion must be at least 1, not 0"),
        (("--fungible-share", "2"), "--fungible-share must be from 0 to 1, not 2"),
        (("--mixing-efficiency-alone", "0"), "--mixing-efficiency-alone must be above 0"),
        (("--release", "fewest_workers"), "--release is about servers on loan: give --inference-servers"),
        (
            ("--policy", "edf", "--elastic-moves", "on"),
            "--elastic-moves is for policies that share out workers",
        ),
        (("--smallest", "3"), "--smallest 3 must not be above --largest 2"),
        (("--ageing-weight", "-1"), "--ageing-weight must be at least 0"),
        (("--policy", "punctual", "--ageing-weight", "-1"), "--ageing-weight must be at least 0"),
        (("--policy", "elasticflow", "--ageing-weight", "1"), "for policies that share out workers"),
        (("--policy", "edf", "--scenario", "basic"), "--scenario is for policies that share out workers"),
        (("--policy", "edf", "--scaling", "off"), "--scaling is about jobs with ranges of workers"),
        (("--policy", "edf", "--knapsack", "single"), "--knapsack is for policies that share out workers"),
        (("--policy", "opportunistic"), "give --inference-servers"),
        (("--policy", "opportunistic", *LENT, "--loaning", "off"), "give --inference-servers"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError) as refusal:
        call_command(
            "simulate", *LYRA, *(() if "--policy" in arguments else ("--policy", "lyra")), *arguments
        )
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_inference_servers_have_a_type_that_something_was_measured_on() -> None:
    with pytest.raises(CommandError, match="nothing was measured on 'H100', only on A100, T4"):
        call_command(
            "simulate", "--trace", "elasticflow:jobs=5", *CLUSTER, *LENT, "--inference-gpu-type", "H100"
        )


def test_inference_servers_of_the_own_type_reach_the_report(tmp_path: Path) -> None:
    lent = (*LENT, "--inference-gpu-type", "A100")
    assert (
        settings_of(tmp_path, "--trace", "elasticflow:jobs=5", *CLUSTER, *lent)["inference_gpu_type"]
        == "A100"
    )


def test_workers_are_no_larger_than_a_server(tmp_path: Path) -> None:
    """Jobs of eight GPUs run on servers of four."""
    trace = "lyra:jobs=40,mean_interarrival_seconds=600"
    facts = simulated(
        tmp_path, "--trace", trace, "--servers", "64", "--gpus-per-server", "4", "--policy", "fifo"
    )
    assert facts["mean_jct_seconds"] is not None
    assert facts["preemptions"] == 0


def test_a_recorded_snapshot_keeps_the_choices_and_one_from_before_them_is_read() -> None:
    asked = Snapshot(0.0, 0.0, (), (), settings=PlannerSettings(two_phase=TwoPhaseOptions(naive=True)))
    assert unpack_snapshot(pack_snapshot(asked)).settings == asked.settings
    plain = Snapshot(0.0, 0.0, (), ())
    assert unpack_snapshot(pack_snapshot(plain)).settings.two_phase is None
