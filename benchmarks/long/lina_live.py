"""A mixture of experts on slow emulated links, without a plan and under the plan that the platform chooses.

    python -m benchmarks.long.lina_live [--workers 2] [--seconds 100] [--compute 2] [--bytes-per-second 2e6]
        [--iterations 24] [--json OUT]

Trains `examples/moe_language_model.py` by real worker processes with gloo, each on an emulated server of its
own. Worker processes, measuring and planning are those of a live platform: one measurement without a plan
gives the input of plans, Lina's schedule is planned from it, and the level is measured again under it.
Experts have room to be packed. Then a job trains under the plan and reports the share of its first iterations
in which rows travel, and how experts were packed. Times are emulated; the host's delay is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gradients.measuring import NO_LINK, local_agent
from communication.combined.choosing import without_plan
from communication.combined.question import PlanQuestion
from communication.profiles.placement import PlacementShape
from examples import moe_language_model
from moe.lina.shared_link import Rates
from moe.planning.memory import ExpertLayer, ModelSizes, bytes_for_packing
from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.gradient_records import links_of, model_of
from scheduling.services.gradients.expert_schedules import schedule_of
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.profiling import VOID_OVERRUN

SOURCE = Path(moe_language_model.__file__)
#: Rows of 512 words on each of two workers, and small experts.
HYPERPARAMETERS = {"gate": "top2", "hidden": 128, "global_batch_size": 32}
LATENCY_SECONDS = 1e-4
#: Free device memory of a worker.
LEFT_BYTES = 1 << 30


def assignment(options: argparse.Namespace) -> dict[str, Any]:
    """Return a measurement on all workers."""
    workers, rate = options.workers, options.bytes_per_second
    link = {"bytes_per_second": rate, "latency_seconds": LATENCY_SECONDS}
    fast = {"bytes_per_second": 1e10}
    names = ("network", "within_server", "spine")
    return {
        "function": {"entry": f"{SOURCE.stem}:MoELanguageModel"},
        "hyperparameters": HYPERPARAMETERS,
        "purpose": "profiling",
        "profile": {
            "levels": [workers],
            "seconds_per_level": options.seconds,
            "max_seconds": 10 * options.seconds + 600,
        },
        "device": {
            "kind": "emulated",
            "name": "emulated-gpu",
            "model": {
                "fixed_seconds": options.compute, "seconds_per_sample": 0.0, "forward_share": 1 / 3,
                "gradient_shares": {}, "codecs": [],
            },
            "links": {**dict.fromkeys(names, link), "host_to_device": fast, "disk": fast},
        },
        "places": {"servers": list(range(workers)), "racks": [0] * workers},
        "termination": {"max_iterations": 100_000, "target": None},
        "seed": 5,
    }  # fmt: skip


def measure(agent: LocalAgent, asked: Mapping[str, Any], workers: int, seconds: float) -> dict[str, Any]:
    """Return rank 0's reports on a measurement, by kind of event."""
    generation = agent.start_generation(SOURCE, asked, workers, seconds=600)
    generation.leader.wait_for_event("profile_done", 20 * seconds + 1200)
    events = {each["kind"]: each for each in generation.leader.of_kind("event")}
    for worker in generation.workers:
        worker.end(120)
    return events


def train(agent: LocalAgent, asked: Mapping[str, Any], workers: int, iterations: int) -> list[dict[str, Any]]:
    """Return the reports of a job's rank 0 on its experts."""
    job = {
        "purpose": "training",
        "profile": None,
        "termination": {"max_iterations": iterations, "target": None},
    }
    generation = agent.start_generation(SOURCE, {**asked, **job}, workers, seconds=600)
    generation.wait_until_ready(600).train_from_nothing().report(60.0 * iterations)
    events = [each for each in generation.leader.of_kind("event") if each["kind"] == "expert_routing"]
    generation.stop()
    return events


def choose(told: Mapping[str, Any], workers: int) -> tuple[dict[str, Any], float, float]:
    """Return the runtime plan, and the predicted seconds of an iteration without and with it."""
    profile, mixture = told["communication_profile"], told["mixture"]
    question = PlanQuestion(
        "mixture", model_of(profile), PlacementShape(workers, 1), links_of(profile, NO_LINK)
    )
    layers = tuple(ExpertLayer(each["experts"], each["state_bytes"]) for each in mixture["layers"])
    sizes = ModelSizes(mixture["parameter_bytes"], mixture["dense_state_bytes"], layers)
    plan = schedule_of(question, profile["experts"], Rates(), bytes_for_packing(sizes, workers, LEFT_BYTES))
    assert plan is not None
    orders = GradientOrders(None, None, (), plan.messages["experts"])
    runtime_plan = choose_runtime_plan(range(workers), "lossless+moe", orders).to_message()
    dense = without_plan(question).predicted
    return runtime_plan, dense.iteration_seconds, plan.predicted.iteration_seconds


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, choices=[2, 4])
    parser.add_argument("--seconds", type=float, default=100.0, help="of each measurement")
    parser.add_argument("--compute", type=float, default=2.0, help="seconds of an iteration without waiting")
    parser.add_argument("--bytes-per-second", type=float, default=2e6, help="of each server's link")
    parser.add_argument("--iterations", type=int, default=24, help="of the job")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"emulated devices and links on {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; {options.workers} workers",
        flush=True,
    )
    asked = assignment(options)
    with local_agent() as agent:
        without = measure(agent, asked, options.workers, options.seconds)
        plan, predicted_without, predicted = choose(without, options.workers)
        choices = plan["synchronisers"][0]["choices"]
        experts = without["communication_profile"]["experts"]
        rows = 4 * experts["layers"] * experts["all_to_all_seconds"]
        print(f"rows travel for {rows:.2f} s of an iteration without a plan; the plan: {choices}", flush=True)
        under = measure(agent, {**asked, "runtime_plan": plan}, options.workers, options.seconds)
        records = train(agent, {**asked, "runtime_plan": plan}, options.workers, options.iterations)
    levels = {"without": without["profile_level"], "under": under["profile_level"]}
    seconds = {name: 1 / level["iterations_per_second"] for name, level in levels.items()}
    is_void = any(level["overrun"] > VOID_OVERRUN for level in levels.values())
    print(
        f"an iteration: {seconds['without']:.3f} s without a plan, {seconds['under']:.3f} s under it, "
        f"{seconds['without'] / seconds['under']:.2f} times as fast (predicted "
        f"{predicted_without / predicted:.2f}); overran by {levels['without']['overrun']:.1%} and "
        f"{levels['under']['overrun']:.1%}" + (": void" if is_void else "")
    )
    for record in records:
        if timing := record["timing"]:
            share = timing["all_to_all_seconds"] / timing["iteration_seconds"]
            print(f"rows travel for {share:.0%} of {timing['iterations']} iterations under it")
        for each in record["decisions"]:
            print(f"  from iteration {each['iteration']}: {each['to_factor']} hosts, {each['reason']}")
    if options.json is not None:
        found = {
            "seconds": seconds,
            "levels": levels,
            "plan": choices,
            "experts": experts,
            "records": records,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
