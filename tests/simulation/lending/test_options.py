"""`manage.py simulate` with elastic jobs and servers on loan: the defaults, and errors of one line."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from research.lyra.specs import values_of
from scheduling.core.lyra.tick import TwoPhase
from scheduling.core.question.options import Option, option, options_of
from scheduling.core.question.recording import pack_snapshot, unpack_snapshot
from scheduling.core.question.snapshot import PlannerSettings, Snapshot
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.policies.shares_workers import chosen_rules
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.sharing import SharingSettings
from simulation.management.lending_options import add_options
from simulation.workloads.scenarios import ScenarioRules

CLUSTER = ("--servers", "2", "--gpus-per-server", "8")
LYRA = ("--trace", "lyra:jobs=12,mean_interarrival_seconds=600", *CLUSTER)
LENT = ("--inference-servers", "4")


def run_summary(folder: Path, *arguments: str) -> dict[str, object]:
    """Return the summary of a run."""
    call_command("simulate", *arguments, "--json", str(folder / "run.json"))
    facts: dict[str, object] = json.loads((folder / "run.json").read_text())
    return facts


def settings_of(folder: Path, *arguments: str) -> dict[str, object]:
    settings = run_summary(folder, *arguments)["settings"]
    assert isinstance(settings, dict)
    return settings


def test_lyra_runs_with_the_settings_of_its_evaluation(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT)
    usual = {
        "slot_seconds": 30.0, "pauses": "none", "scenario": "basic", "scaling": True, "loaning": True,
        "expansion": 3,
        "inference_servers": 4, "inference_usage": "daily", "reclaim": "lyra", "forecaster": "persistence",
    }  # fmt: skip
    assert usual.items() <= settings.items()


def test_runs_without_scenario_and_loans_keep_the_defaults(tmp_path: Path) -> None:
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
    expected = {
        "scenario": "advanced", "reclaim": "scf", "forecaster": "none", "headroom": 0.1, "expansion": 2,
        "gain": 0.8,
        "naive": True, "single_knapsack": True, "shortest_at_most": True, "scaling": False,
    }  # fmt: skip
    assert expected.items() <= settings.items()


#: A value other than the default for each number; truth values are inverted.
OTHER_NUMBERS = {
    "fungible_share": 0.3, "fungible_share_of_elastic": 0.5, "mixing_share": 0.2, "mixing_efficiency": 0.8,
    "mixing_efficiency_alone": 0.7, "elastic_job_share": 0.2, "elastic_load_share": 0.5, "smallest": 0.25,
    "largest": 4.0, "gain": 0.8, "checkpointing_share": 0.5, "wrong_estimate_share": 0.2,
    "estimate_error": 0.5, "unbounded_workers": 4, "headroom": 0.1, "forecast_margin": 0.05,
    "hysteresis": 0.05, "hold_seconds": 600.0, "period_seconds": 600.0, "expansion": 2,
    "preemption_seconds": 30.0, "ageing_weight": 1.0, "change_seconds": 5.0,
}  # fmt: skip
OTHER_WORDS = {"reclaim": "scf", "forecaster": "ridge"}
OFFERED = [choice for kind in (Lending, SharingSettings, ScenarioRules, TwoPhaseOptions) for choice in
           options_of(kind).values()]  # fmt: skip


def other_value(choice: Option) -> Any:
    """Return a value of an option that is not its default."""
    if choice.kind is bool:
        return not choice.usual
    return OTHER_WORDS[choice.name] if choice.words else OTHER_NUMBERS.get(choice.name, 1)


def test_all_lyra_choices_are_options_and_appear_in_the_report(tmp_path: Path) -> None:
    """An option is one line of a dataclass; this test lists none of them."""
    given = {choice.name: other_value(choice) for choice in OFFERED}
    flags = [
        f"--{choice.offered_as.replace('_', '-')}={choice.said(given[choice.name])}" for choice in OFFERED
    ]  # fmt: skip
    settings = settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT, *flags)
    unreported = {"preemption_seconds"}
    assert {
        name: value for name, value in given.items() if name not in unreported
    }.items() <= settings.items()
    usual = [
        f"--{choice.offered_as.replace('_', '-')}={choice.said(choice.usual)}"
        for choice in OFFERED if choice.usual is not None
    ]  # fmt: skip
    assert settings_of(tmp_path, *LYRA, "--policy", "lyra", *LENT, *usual) == settings_of(
        tmp_path, *LYRA, "--policy", "lyra", *LENT
    )


@pytest.mark.parametrize("choice", options_of(TwoPhaseOptions).values(), ids=lambda choice: choice.name)
def test_every_choice_reaches_lyras_rules(choice: Option) -> None:
    chosen = chosen_rules(TwoPhase(), TwoPhaseOptions(**{choice.name: other_value(choice)}))
    assert getattr(chosen, choice.name) == other_value(choice)
    assert chosen != TwoPhase()


def test_a_new_choice_is_one_line() -> None:
    """The command line, a figure's override and the rules read the option from the dataclass."""
    more = make_dataclass(
        "MoreOptions", [("spread_thin", bool, option(False, "whether workers spread"))],
        bases=(TwoPhaseOptions,), frozen=True,
    )  # fmt: skip
    parser = ArgumentParser()
    add_options(parser.add_argument_group("rules"), more)
    assert parser.parse_args(["--spread-thin", "on"]).spread_thin == "on"
    assert "whether workers spread; default: off" in " ".join(parser.format_help().split())
    assert values_of((("spread_thin", 1.0), ("ageing_weight", 2.0)), more) == {
        "spread_thin": True, "ageing_weight": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reclaim", "scf"), "--reclaim is about servers on loan: give --inference-servers"),
        (("--loaning", "on"), "--loaning on is about servers on loan"),
        (("--inference-servers", "0"), "--inference-servers must be at least 1, not 0"),
        ((*LENT, "--inference-usage", "no-such-curve"), "no-such-curve"),
        ((*LENT, "--headroom", "2"), "--headroom must be from 0 to 1, not 2"),
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


def test_inference_servers_need_a_type_with_measurements() -> None:
    with pytest.raises(CommandError, match="nothing was measured on 'H100', only on A100, T4"):
        call_command(
            "simulate", "--trace", "elasticflow:jobs=5", *CLUSTER, *LENT, "--inference-gpu-type", "H100"
        )


def test_inference_servers_of_the_training_type_reach_the_report(tmp_path: Path) -> None:
    lent = (*LENT, "--inference-gpu-type", "A100")
    assert (
        settings_of(tmp_path, "--trace", "elasticflow:jobs=5", *CLUSTER, *lent)["inference_gpu_type"]
        == "A100"
    )


def test_workers_are_no_larger_than_a_server(tmp_path: Path) -> None:
    """Jobs of eight GPUs run on servers of four."""
    trace = "lyra:jobs=40,mean_interarrival_seconds=600"
    facts = run_summary(
        tmp_path, "--trace", trace, "--servers", "64", "--gpus-per-server", "4", "--policy", "fifo"
    )
    assert facts["mean_jct_seconds"] is not None
    assert facts["preemptions"] == 0


def test_snapshots_with_and_without_two_phase_choices_unpack() -> None:
    recorded = Snapshot(0.0, 0.0, (), (), settings=PlannerSettings(two_phase=TwoPhaseOptions(naive=True)))
    assert unpack_snapshot(pack_snapshot(recorded)).settings == recorded.settings
    plain = Snapshot(0.0, 0.0, (), ())
    assert unpack_snapshot(pack_snapshot(plain)).settings.two_phase is None
