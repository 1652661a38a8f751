"""Options of `manage.py simulate` about elastic jobs, servers lent by an inference cluster, and Lyra's rules
(contracts 7; spec 1.8, 2.13)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from lending.forecasting.registry import FORECASTERS
from scheduling.core.lyra.reclaiming.choosing import ReclaimMethod
from scheduling.core.question.snapshot import AGEING_WEIGHT
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.policies import POLICIES, policy_named
from scheduling.policies.opportunistic import Opportunistic
from scheduling.policies.punctual import Punctual
from scheduling.policies.shares_workers import SharesWorkers
from simulation.engine.sharing import USUAL_GPU_TYPE, Lending, SharingSettings
from simulation.inference.catalogue import read_usage
from simulation.workloads.linear import COMPUTING_POWER, is_linear
from simulation.workloads.scenarios import RULES, Scenario, ScenarioRules
from simulation.workloads.workload import Workload

ON, OFF = "on", "off"
NO_FORECASTER = "none"

#: Options that say how jobs are tagged: field of `ScenarioRules`, and what it is.
_OF_JOBS = {
    "fungible_share": "share of jobs that can run on inference GPUs too",
    "fungible_share_of_elastic": "the same of elastic jobs, where it differs",
    "mixing_share": "share of jobs that can use both kinds of GPUs at once",
    "mixing_efficiency": "speed of a job on both kinds, over the sum of its parts",
    "mixing_efficiency_alone": "the same of such a job while it is on one kind",
    "elastic_job_share": "share of jobs that are elastic",
    "elastic_load_share": "share of all work that these do",
    "smallest": "fewest workers of an elastic job, over what was asked for",
    "largest": "most workers of an elastic job, over what was asked for",
    "gain": "part of a worker that each worker beyond the fewest yields",
    "checkpointing_share": "share of jobs that keep their progress when they are preempted",
    "wrong_estimate_share": "share of jobs whose running time is misjudged",
    "estimate_error": "by so much at most",
}
#: Options that need servers to be lent.
_OF_LENDING = (
    "inference_usage", "reclaim", "forecaster", "headroom", "forecast_margin", "lending_hysteresis",
    "lending_hold_seconds", "orchestrator_seconds", "exact_last_pick", "count_owned_servers", "release",
    "inference_gpu_type",
)  # fmt: skip
#: Options that need jobs with ranges of workers.
_OF_SCENARIO = ("scaling", "expansion", "unbounded_workers", *_OF_JOBS)
_OF_RULES = (
    "shortest_by", "knapsack", "knapsack_value", "flexible_in_holes", "placement", "emptied_servers",
    "elastic_moves",
    "retry_scattered", "ageing_weight", "change_seconds",
)  # fmt: skip


def add_lending_options(parser: ArgumentParser) -> None:
    """Add the options. None of them has a default here, so that what was not given can be told."""
    lent = parser.add_argument_group("servers lent by an inference cluster")
    lent.add_argument("--inference-servers", type=int, help="servers of the inference cluster")
    lent.add_argument(
        "--inference-usage", help="its usage: a profile, a public curve or a file; usual: daily"
    )
    lent.add_argument(
        "--inference-gpu-type",
        help="the type of its GPUs; usual: T4. Of the training cluster's own type jobs use both at once",
    )
    lent.add_argument("--loaning", choices=[ON, OFF], help="whether it lends; usual: on")
    lent.add_argument("--reclaim", choices=[one.value for one in ReclaimMethod], help="usual: lyra")
    lent.add_argument(
        "--exact-last-pick", choices=[ON, OFF], help="the last server by count of jobs; usual: on"
    )
    lent.add_argument(
        "--count-owned-servers", choices=[ON, OFF],
        help="whether owned servers too share the cost of preempting a job; usual: off",
    )  # fmt: skip
    lent.add_argument(
        "--release", choices=["least_lost", "fewest_workers"],
        help="which servers with flexible workers alone go back first; usual: least_lost",
    )  # fmt: skip
    lent.add_argument("--forecaster", choices=[*FORECASTERS, NO_FORECASTER], help="usual: persistence")
    lent.add_argument("--headroom", type=float, help="share of its servers that is never lent; usual: 0.02")
    lent.add_argument("--forecast-margin", type=float, help="share of it added to each forecast; usual: 0")
    lent.add_argument(
        "--lending-hysteresis", type=float,
        help="lend only where usage could rise by this share before a server had to be asked back; usual: 0",
    )  # fmt: skip
    lent.add_argument(
        "--lending-hold-seconds", type=float, help="least time that a server stays where it is; usual: 0"
    )
    lent.add_argument("--orchestrator-seconds", type=float, help="time between two looks; usual: 300")
    jobs = parser.add_argument_group("jobs with ranges of workers, as in Lyra's evaluation")
    jobs.add_argument(
        "--scenario", choices=[one.value for one in Scenario],
        help="how freely jobs scale and move; usual: basic where throughput grows as the GPUs do (profile "
             "lyra)",
    )  # fmt: skip
    jobs.add_argument("--scaling", choices=[ON, OFF], help="whether elastic jobs are scaled; usual: on")
    jobs.add_argument("--expansion", type=int, help="inference workers for one training worker; usual: 3")
    jobs.add_argument("--preemption-seconds", type=float, help="cost of being preempted; usual: 63")
    jobs.add_argument(
        "--unbounded-workers",
        type=int,
        help="elastic jobs start on one worker and may have so many (AFS as published)",
    )
    for name, meaning in _OF_JOBS.items():
        jobs.add_argument(f"--{name.replace('_', '-')}", type=float, help=meaning)
    rules = parser.add_argument_group("how workers are shared out")
    rules.add_argument(
        "--shortest-by", choices=["base", "most"], help="running time that orders jobs; usual: base"
    )
    rules.add_argument(
        "--knapsack",
        choices=["per_kind", "single"],
        help="one for each kind of servers, or one for all; usual: per_kind",
    )
    rules.add_argument(
        "--knapsack-value",
        choices=["remaining", "total"],
        help="work on which the time saved by more workers is counted; usual: remaining",
    )
    rules.add_argument(
        "--emptied-servers",
        choices=["last", "as_idle"],
        help="when base workers take servers on loan that flexible ones would have to leave; usual: last",
    )
    rules.add_argument(
        "--elastic-moves", choices=[ON, OFF], help="running elastic jobs move to servers on loan; usual: off"
    )
    rules.add_argument(
        "--retry-scattered",
        choices=["tick", "freed"],
        help="under lyra, jobs that found only scattered GPUs are tried at every tick, or after something "
        "ended or came; usual: tick",
    )
    rules.add_argument(
        "--flexible-in-holes", choices=[ON, OFF], help="flexible workers beside base ones on loan; usual: on"
    )
    rules.add_argument("--placement", choices=["grouped", "naive"], help="usual: grouped")
    rules.add_argument(
        "--ageing-weight",
        type=float,
        help=f"seconds of running time for a second of waiting; usual: {AGEING_WEIGHT:g} under punctual, "
        f"else 0",
    )
    rules.add_argument(
        "--change-seconds", type=float, help="what a change of workers is taken to cost; usual: 0"
    )


def sharing_settings(options: Mapping[str, Any], workload: Workload) -> SharingSettings | None:
    """What the options ask for; None where nothing is asked for and the workload has no ranges of workers.

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
        scaling=options["scaling"] != OFF,
        lending=_lending(options, _gpu_type(options, workload, scenario)) if lends else None,
        expansion=_at_least(options, "expansion", 1, COMPUTING_POWER),
        preemption_seconds=_at_least(options, "preemption_seconds", 0.0, 63.0),
        two_phase=_two_phase(options),
    )


def _lends(options: Mapping[str, Any]) -> bool:
    servers = options["inference_servers"]
    if servers is not None and servers < 1:
        raise ValueError(f"--inference-servers must be at least 1, not {servers}")
    given = [_flag(name) for name in _OF_LENDING if options[name] is not None]
    if servers is None and options["loaning"] == ON:
        given.insert(0, "--loaning on")
    if servers is None and given:
        raise ValueError(f"{given[0]} is about servers on loan: give --inference-servers")
    if servers is not None and options["gpu_type"] and "," in options["gpu_type"]:
        raise ValueError(
            "--inference-servers: servers are lent to one pool of training servers, not to several"
        )
    return servers is not None and options["loaning"] != OFF


def _scenario(options: Mapping[str, Any], workload: Workload) -> Scenario | None:
    shares = isinstance(policy_named(options["policy"]), SharesWorkers)
    if options["scenario"] is not None:
        if not shares:
            able = ", ".join(sorted(name for name, one in POLICIES.items() if isinstance(one, SharesWorkers)))
            raise ValueError(
                f"--scenario is for policies that share out workers ({able}), not for {options['policy']}"
            )
        if options["gpu_type"] and "," in options["gpu_type"]:
            raise ValueError("--scenario is for one pool of training servers, not for several")
        return Scenario(options["scenario"])
    if shares and is_linear(workload):
        return Scenario.BASIC
    given = next((name for name in (*_OF_SCENARIO, "preemption_seconds") if options[name] is not None), None)
    if given is not None:
        raise ValueError(f"{_flag(given)} is about jobs with ranges of workers: give --scenario")
    ages = options["policy"] == Punctual.name
    unused = next(
        (name for name in _OF_RULES if options[name] is not None and not (ages and name == "ageing_weight")),
        None,
    )
    if unused is not None and not shares:
        raise ValueError(
            f"{_flag(unused)} is for policies that share out workers, not for {options['policy']}"
        )
    return None


def _rules(options: Mapping[str, Any], scenario: Scenario) -> ScenarioRules:
    chosen = {name: options[name] for name in _OF_JOBS if options[name] is not None}
    for name, value in chosen.items():
        least, most = (
            (0.0, 1.0) if "share" in name or name in ("gain", "estimate_error") else (0.0, float("inf"))
        )
        if not least <= value <= most:
            raise ValueError(
                f"{_flag(name)} must be from 0 to 1, not {value:g}"
                if most == 1.0
                else f"{_flag(name)} must not be negative, and {value:g} is"
            )
    for name in ("mixing_efficiency", "mixing_efficiency_alone"):
        if chosen.get(name, 1.0) <= 0.0:
            raise ValueError(f"{_flag(name)} must be above 0")
    unbounded = _at_least(options, "unbounded_workers", 1, 0)
    rules = replace(RULES[scenario], **chosen, unbounded_workers=unbounded)
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
    known = sorted({name for profile in workload.profiles for name in profile.by_gpu_type})
    if given not in known:
        raise ValueError(
            f"--inference-gpu-type: nothing was measured on {given!r}, only on {', '.join(known)}"
        )
    return given


def _lending(options: Mapping[str, Any], gpu_type: str) -> Lending:
    headroom, margin = options["headroom"], options["forecast_margin"]
    hysteresis, hold = options["lending_hysteresis"], options["lending_hold_seconds"]
    for name, share in (
        ("headroom", headroom),
        ("forecast_margin", margin),
        ("lending_hysteresis", hysteresis),
    ):
        if share is not None and not 0.0 <= share <= 1.0:
            raise ValueError(f"{_flag(name)} is a share from 0 to 1, not {share:g}")
    period = options["orchestrator_seconds"]
    if period is not None and period <= 0:
        raise ValueError(f"--orchestrator-seconds must be above 0, not {period:g}")
    if hold is not None and not 0 <= hold < inf:
        raise ValueError(f"--lending-hold-seconds must be a number from 0, not {hold:g}")
    forecaster = options["forecaster"] or "persistence"
    return Lending(
        options["inference_servers"],
        read_usage(options["inference_usage"] or "daily", seed=options["seed"]),
        reclaim=ReclaimMethod(options["reclaim"] or ReclaimMethod.LYRA),
        exact_last_pick=options["exact_last_pick"] != OFF,
        count_owned_servers=options["count_owned_servers"] == ON,
        fewest_workers_first=options["release"] == "fewest_workers",
        headroom=0.02 if headroom is None else headroom,
        forecast_margin=margin or 0.0,
        hysteresis=hysteresis or 0.0,
        hold_seconds=hold or 0.0,
        forecaster="" if forecaster == NO_FORECASTER else forecaster,
        period_seconds=period or 300.0,
        inference_gpu_type=gpu_type,
    )


def _two_phase(options: Mapping[str, Any]) -> TwoPhaseOptions:
    def is_given(name: str, value: str) -> bool | None:
        return None if options[name] is None else options[name] == value

    for name in ("ageing_weight", "change_seconds"):
        _at_least(options, name, 0.0, 0.0)
    return TwoPhaseOptions(
        shortest_at_most=is_given("shortest_by", "most"),
        single_knapsack=is_given("knapsack", "single"),
        flexible_in_holes=is_given("flexible_in_holes", ON),
        naive=is_given("placement", "naive"),
        ageing_weight=options["ageing_weight"],
        change_seconds=options["change_seconds"],
        value_total_work=is_given("knapsack_value", "total"),
        emptied_as_idle=is_given("emptied_servers", "as_idle"),
        elastic_moves=is_given("elastic_moves", ON),
        retry_when_freed=is_given("retry_scattered", "freed"),
    )


def ageing_weight(options: Mapping[str, Any]) -> float:
    """The weight of waiting under ``punctual``. Raises ValueError where it is negative."""
    return float(_at_least(options, "ageing_weight", 0.0, AGEING_WEIGHT))


def _at_least(options: Mapping[str, Any], name: str, least: float, usual: Any) -> Any:
    value = options[name]
    if value is not None and not value >= least:
        raise ValueError(f"{_flag(name)} must be at least {least:g}, not {value:g}")
    return usual if value is None else value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
