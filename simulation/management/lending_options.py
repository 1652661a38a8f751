"""Options of `manage.py simulate` about elastic jobs, servers lent by an inference cluster, and Lyra's rules.

What can be chosen, and within which bounds, the dataclasses say that hold the choices.
"""

from __future__ import annotations

from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduling.core.question.options import Option, options_of
from scheduling.core.question.snapshot import AGEING_WEIGHT
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.policies.base import Policy
from scheduling.policies.punctual import Punctual
from scheduling.policies.shares_workers import SharesWorkers
from simulation.baselines.against_lyra.opportunistic import Opportunistic
from simulation.engine.asked.lending import USUAL_GPU_TYPE, Lending
from simulation.engine.asked.sharing import SharingSettings
from simulation.inference.catalogue import read_usage
from simulation.policies import policies_where, policy_named
from simulation.workloads.linear import is_linear
from simulation.workloads.scenarios import RULES, Scenario, ScenarioRules
from simulation.workloads.workload import Workload

ON, OFF = "on", "off"
USUAL_USAGE = "daily"
AGEING = "ageing_weight"


def add_lending_options(parser: ArgumentParser) -> None:
    """Add the options. They have no defaults here, so that missing options can be recognised."""
    lent = parser.add_argument_group("servers lent by an inference cluster")
    lent.add_argument("--inference-servers", type=int, help="servers of the inference cluster")
    lent.add_argument(
        "--inference-usage", help=f"its usage: a profile, a public curve or a file; default: {USUAL_USAGE}"
    )
    lent.add_argument(
        "--inference-gpu-type",
        help=f"the type of its GPUs; default: {USUAL_GPU_TYPE}. If it is the training cluster's type, jobs "
        "use GPUs of both at once",
    )
    lent.add_argument("--loaning", choices=[ON, OFF], help="whether it lends; default: on")
    add_options(lent, Lending)
    jobs = parser.add_argument_group("jobs with ranges of workers, as in Lyra's evaluation")
    jobs.add_argument(
        "--scenario", choices=[one.value for one in Scenario],
        help="how freely jobs scale and move; default: basic if throughput grows as the GPUs do (profile "
             "lyra)",
    )  # fmt: skip
    add_options(jobs, SharingSettings)
    add_options(jobs, ScenarioRules, usual="the scenario's")
    add_options(parser.add_argument_group("how workers are shared out"), TwoPhaseOptions)


def add_options(group: _ArgumentGroup, dataclass_type: type, *, usual: str = "") -> None:
    """An option of the command for each choice that a dataclass offers. ``usual``: in place of its own."""
    for name, told in options_of(dataclass_type).items():
        takes: dict[str, Any] = {"choices": list(told.words)} if told.words else {"type": told.kind}
        group.add_argument(
            _flag(name), **takes, help=f"{told.meaning}; default: {usual or told.said(told.usual)}"
        )


def sharing_settings(options: Mapping[str, Any], workload: Workload) -> SharingSettings | None:
    """Return the lending that the options select; None if they select none and the workload has no ranges of
    workers.

    Raises ValueError of one line for options that contradict each other, TraceError for usage that cannot be
    read.
    """
    lends = _lends(options)
    scenario = _scenario(options, workload)
    if options["policy"] == Opportunistic.name and scenario is not None and not lends:
        raise ValueError(
            "opportunistic runs jobs on idle inference servers: give --inference-servers, without --loaning "
            "off"
        )
    if scenario is None and not lends:
        return None
    return SharingSettings(
        rules=None if scenario is None else _rules(options, scenario),
        lending=_lending(options, _gpu_type(options, workload, scenario)) if lends else None,
        two_phase=TwoPhaseOptions(**_chosen(options, TwoPhaseOptions)),
        **_chosen(options, SharingSettings),
    )


def _lends(options: Mapping[str, Any]) -> bool:
    servers = options["inference_servers"]
    if servers is not None and servers < 1:
        raise ValueError(f"--inference-servers must be at least 1, not {servers}")
    given = _given(options, "inference_usage", "inference_gpu_type", *options_of(Lending))
    if servers is None and options["loaning"] == ON:
        given.insert(0, "--loaning on")
    if servers is None and given:
        raise ValueError(f"{given[0]} is about servers on loan: give --inference-servers")
    if servers is not None and options["gpu_type"] and "," in options["gpu_type"]:
        raise ValueError(
            "--inference-servers: servers are lent to one pool of training servers, not to several"
        )
    return servers is not None and options["loaning"] != OFF


def _shares(policy: Policy) -> bool:
    return isinstance(policy, SharesWorkers)


def _scenario(options: Mapping[str, Any], workload: Workload) -> Scenario | None:
    shares = _shares(policy_named(options["policy"]))
    if options["scenario"] is not None:
        if not shares:
            able = ", ".join(sorted(policies_where(_shares)))
            raise ValueError(
                f"--scenario is for policies that share out workers ({able}), not for {options['policy']}"
            )
        if options["gpu_type"] and "," in options["gpu_type"]:
            raise ValueError("--scenario is for one pool of training servers, not for several")
        return Scenario(options["scenario"])
    if shares and is_linear(workload):
        return Scenario.BASIC
    given = _given(options, *options_of(SharingSettings), *options_of(ScenarioRules))
    if given:
        raise ValueError(f"{given[0]} is about jobs with ranges of workers: give --scenario")
    ages = options["policy"] == Punctual.name
    unused = _given(options, *(name for name in options_of(TwoPhaseOptions) if not (ages and name == AGEING)))
    if unused and not shares:
        raise ValueError(f"{unused[0]} is for policies that share out workers, not for {options['policy']}")
    return None


def _rules(options: Mapping[str, Any], scenario: Scenario) -> ScenarioRules:
    rules = replace(RULES[scenario], **_chosen(options, ScenarioRules))
    if rules.smallest > rules.largest:
        raise ValueError(f"--smallest {rules.smallest:g} must not be above --largest {rules.largest:g}")
    return rules


def _gpu_type(options: Mapping[str, Any], workload: Workload, scenario: Scenario | None) -> str:
    """The inference cluster's type of GPU: one that some job of the workload was measured on."""
    given: str | None = options["inference_gpu_type"]
    if given is None:
        return USUAL_GPU_TYPE
    if scenario is not None:
        raise ValueError(
            "--inference-gpu-type is about jobs with measured curves: with a scenario its GPUs are a third "
            "as fast"
        )
    known = sorted({name for profile in workload.profiles for name in profile.by_kind})
    if given not in known:
        raise ValueError(
            f"--inference-gpu-type: nothing was measured on {given!r}, only on {', '.join(known)}"
        )
    return given


def _lending(options: Mapping[str, Any], gpu_type: str) -> Lending:
    return Lending(
        options["inference_servers"],
        read_usage(options["inference_usage"] or USUAL_USAGE, seed=options["seed"]),
        inference_gpu_type=gpu_type,
        **_chosen(options, Lending),
    )


def ageing_weight(options: Mapping[str, Any]) -> float:
    """The weight of waiting under ``punctual``. Raises ValueError where it is negative."""
    given = _chosen(options, TwoPhaseOptions)
    return float(given.get(AGEING, AGEING_WEIGHT))


def _given(options: Mapping[str, Any], *names: str) -> list[str]:
    """Those of the options that were given, as they are written."""
    return [_flag(name) for name in names if options[name] is not None]


def _chosen(options: Mapping[str, Any], dataclass_type: type) -> dict[str, Any]:
    """What was given of a dataclass's choices, by field. Raises ValueError for a value out of bounds."""
    given = {name: told for name, told in options_of(dataclass_type).items() if options[name] is not None}
    return {told.name: _read(name, told, options[name]) for name, told in given.items()}


def _read(name: str, told: Option, value: Any) -> Any:
    try:
        return told.read(value)
    except ValueError as error:
        raise ValueError(f"{_flag(name)} {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
