"""Measurements of a scene by profiling generations of real workers, and plans made from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gradients.scene import Scene
from communication.combined.choosing import choose
from communication.combined.grouping import others
from communication.combined.plan import CandidatePlan
from communication.combined.question import PLANNERS, PlanQuestion
from communication.library.codec_names import LOSSY
from communication.profiles.link import LinkProfile, LinkRate
from punctual.protocol.communication import CommunicationProfile
from punctual.protocol.reports import check
from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.core.runtime_plans.plan import PlanFamily
from scheduling.gradient_records import codecs_of, links_of, model_of, sparse_of
from workers.runtime.at_home.local_agent import LocalAgent, stage_packages
from workers.runtime.at_home.local_nursery import Nursery
from workers.runtime.profiling import VOID_OVERRUN

#: Stands for links that these ranks do not have.
NO_LINK = LinkProfile(LinkRate(0.0, 1e15), LinkRate(0.0, 1e15))


@dataclass(frozen=True)
class Measured:
    """A level of all ranks. ``profile``: the record of its gradients, as an agent receives it."""

    iteration_seconds: float
    overrun: float
    profile: dict[str, Any]

    @property
    def void(self) -> bool:
        """Whether the machine was too slow for the pace."""
        return self.overrun > VOID_OVERRUN


@dataclass(frozen=True)
class Plan:
    """A planner's best plan: the prediction, and the input of a generation."""

    candidate: CandidatePlan
    runtime_plan: dict[str, Any]

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds of an iteration."""
        return self.candidate.predicted.iteration_seconds


@contextmanager
def local_agent() -> Iterator[LocalAgent]:
    """An agent whose workers are forked from one process that has imported everything."""
    with TemporaryDirectory() as folder:
        nursery = Nursery(stage_packages(Path(folder) / "packages"))
        try:
            with LocalAgent(nursery.start_worker) as agent:
                yield agent
        finally:
            nursery.close()


def measure(agent: LocalAgent, scene: Scene, plan: Plan | None, seconds: float) -> Measured:
    """Train under a plan, or without one, for about ``seconds`` seconds."""
    assignment = scene.assignment(seconds)
    if plan is not None:
        assignment["runtime_plan"] = plan.runtime_plan
    generation = agent.start_generation(
        scene.setting.source, assignment, scene.placement.workers, seconds=300
    )
    generation.leader.wait_for_event("profile_done", 30 * seconds + 300)
    events = generation.leader.of_kind("event")
    (level,) = [each for each in events if each["kind"] == "profile_level"]
    (told,) = [each for each in events if each["kind"] == "communication_profile"]
    for worker in generation.workers:
        worker.end(120)
    profile, problem = check(CommunicationProfile, told)
    if profile is None:
        raise SystemExit(f"no agent would take what was told of the gradients: {problem}")
    return Measured(1.0 / level["iterations_per_second"], level["overrun"], profile)


def question(scene: Scene, profile: dict[str, Any]) -> PlanQuestion:
    """Return the control plane's question for a profile; the codec is the one published with it."""
    codec = scene.setting.codec
    return PlanQuestion(
        scene.setting.name,
        model_of(profile),
        scene.placement,
        links_of(profile, NO_LINK),
        sparse_of(profile),
        codecs_of(profile),
        lossy=codec is not None,
        codec_names=(codec,) if codec in LOSSY else (),
    )


def plans(scene: Scene, profile: dict[str, Any]) -> dict[str, Plan]:
    """Return the best plan of each planner for a profile, `dense` among them."""
    asked = question(scene, profile)
    choice = choose(asked)
    found = {each.planner: each for each in (choice.chosen, *choice.beaten)}
    return {
        name: Plan(found[name], _runtime_plan(scene, found[name], asked))
        for name in PLANNERS
        if name in found
    }


def _runtime_plan(scene: Scene, candidate: CandidatePlan, asked: PlanQuestion) -> dict[str, Any]:
    """Return the runtime plan that the control plane would make of a plan's messages."""
    messages, rest = candidate.messages, others(asked, candidate)
    names = () if rest is None else rest.tensor_names
    orders = GradientOrders(messages.get("sparse"), messages.get("rest"), names) if messages else None
    family = PlanFamily.LOSSLESS if candidate.lossless else PlanFamily.LOSSY
    return choose_runtime_plan(scene.servers, family, orders).to_message()
