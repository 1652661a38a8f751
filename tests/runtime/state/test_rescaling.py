"""A rescaled run sees the same samples in the same order and ends with the same loss.

The tolerance is relative, 1e-5: on other numbers of workers sums are added in another order, which changes
the last digits of a float32, and a smooth model keeps such differences small.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from emulated_links.rates import WITHIN_SERVER, ServerLinks
from tests.runtime.conftest import FUNCTIONS, REGRESSION, emulated, regression
from tests.runtime.functions.mixture import Mixture
from workers.runtime.at_home.local_agent import Generation, LocalAgent
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.at_home.local_worker import Message

TOLERANCE = 1e-5
LARGE_STATE = Path(__file__).parents[3] / "benchmarks/functions/large_state.py"
#: Slow enough that no machine ends the job before its next move.
PACE = emulated(fixed_seconds=0.25)


def _unscaled(agent: LocalAgent, assignment: dict[str, Any], source: Path = REGRESSION) -> Message:
    generation = agent.start_generation(source, assignment, 1).wait_until_ready()
    return generation.train_from_nothing().report()


def _rescaled(
    agent: LocalAgent,
    assignment: dict[str, Any],
    worlds: Sequence[int],
    every: int,
    source: Path = REGRESSION,
) -> tuple[Message, list[Message]]:
    """Hand over about every `every` iterations; return the report and each generation's first event. All but
    the last generation are paced."""
    current: Generation | None = None
    events = []
    for place, world_size in enumerate(worlds):
        device = {"device": PACE} if place + 1 < len(worlds) else {}
        coming = agent.start_generation(source, {**assignment, **device, "generation": place + 1}, world_size)
        coming.wait_until_ready()
        if current is None:
            coming.train_from_nothing()
        else:
            coming.train_from(current)
        events.append(coming.leader.wait_for_event("first_iteration"))
        if current is not None:
            assert current.leader.wait_for_file("checkpoint")["reason"] == "handover"
            current.leader.wait_for_phase("handed_over")
            current.stop()
        current = coming
        if place + 1 < len(worlds):
            current.wait_for_iteration(events[-1]["iteration"] + every)
    assert current is not None
    report = current.report()
    current.stop()
    return report, events


def _assert_same_training(rescaled: Message, unscaled: Message) -> None:
    assert rescaled["sample_order_digest"] == unscaled["sample_order_digest"]
    assert rescaled["final"] == pytest.approx(unscaled["final"], rel=TOLERANCE)
    assert [point["iteration"] for point in rescaled["history"]] == [
        point["iteration"] for point in unscaled["history"]
    ]
    for rescaled_point, unscaled_point in zip(rescaled["history"], unscaled["history"], strict=True):
        assert rescaled_point["values"]["loss"] == pytest.approx(
            unscaled_point["values"]["loss"], rel=TOLERANCE
        )


def test_two_three_and_one_worker_end_with_the_loss_of_one(agent: LocalAgent) -> None:
    """Three cannot share ten samples evenly."""
    assignment = regression(
        iterations=200, batch=10, hyperparameters={"gradient_clip_norm": 0.5, "dropout": True}
    )
    unscaled = _unscaled(agent, assignment)
    rescaled, events = _rescaled(agent, assignment, [2, 3, 1], every=1)
    _assert_same_training(rescaled, unscaled)
    boundaries = [event["iteration"] for event in events]
    assert boundaries == sorted(set(boundaries))
    assert all(event["pause_seconds"] > 0 for event in events)


def test_experts_move_with_their_job(agent: LocalAgent) -> None:
    """From two workers to four, one more than there are experts, then to three and to one. The function runs
    its model after every iteration, and some iterations are evaluated: both need all experts."""
    source = FUNCTIONS / "mixture.py"
    assignment = regression(
        iterations=24,
        batch=10,
        function={"entry": "mixture:Mixture"},
        hyperparameters={"gradient_clip_norm": 0.5, "evaluate_every": 2},
    )
    unscaled = _unscaled(agent, assignment, source)
    rescaled, _ = _rescaled(agent, assignment, [2, 4, 3, 1], every=1, source=source)
    _assert_same_training(rescaled, unscaled)


def test_a_durable_state_has_all_experts(agent: LocalAgent) -> None:
    """A suspended job resumes on another number of workers; PyTorch alone reads its weights."""
    source = FUNCTIONS / "mixture.py"
    assignment = regression(iterations=8, batch=10, function={"entry": "mixture:Mixture"})
    unscaled = _unscaled(agent, assignment, source)
    slow = {**assignment, "device": PACE}
    first = agent.start_generation(source, slow, 2).wait_until_ready()
    first.train_from_nothing().wait_for_iteration(2)
    first.goal("suspend")
    state = first.checkpoint_files()
    second = agent.start_generation(source, {**assignment, "generation": 2}, 4).wait_until_ready()
    report = second.train_from_checkpoint(state).report()
    _assert_same_training(report, unscaled)
    weights = torch.load(second.leader.box / "out/final/weights.pt", weights_only=True)
    model = Mixture({}).init_model()
    model.load_state_dict(weights)
    model.eval()
    loss = Mixture({}).evaluate(model)["loss_of_all"]
    assert loss == pytest.approx(unscaled["final"]["loss_of_all"], rel=TOLERANCE)


def test_a_rank_without_a_sample_of_its_own_changes_nothing(agent: LocalAgent) -> None:
    assignment = regression(iterations=40, batch=2)
    unscaled = _unscaled(agent, assignment)
    generation = agent.start_generation(REGRESSION, assignment, 3).wait_until_ready()
    _assert_same_training(generation.train_from_nothing().report(), unscaled)


def test_a_suspended_job_resumes_exactly_where_it_stopped(agent: LocalAgent) -> None:
    assignment = regression(iterations=80)
    unscaled = _unscaled(agent, assignment)
    slow = {**assignment, "device": PACE}
    first = agent.start_generation(REGRESSION, slow, 1).wait_until_ready()
    first.train_from_nothing().wait_for_iteration(2)
    first.goal("suspend")
    state = first.checkpoint_files()
    assert state.reason == "suspend"
    first.leader.wait_for_phase("suspended")
    assert first.leader.end() == 0
    second = agent.start_generation(REGRESSION, {**assignment, "generation": 2}, 1).wait_until_ready()
    report = second.train_from_checkpoint(state).report()
    assert report["final"] == unscaled["final"]
    assert report["history"] == unscaled["history"]
    assert report["sample_order_digest"] == unscaled["sample_order_digest"]


def test_all_ranks_stop_after_the_same_iteration(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(iterations=10**6), 3).wait_until_ready()
    generation.train_from_nothing().wait_for_iteration(20)
    # The other ranks receive the goal late: rank 0's flag stops them.
    generation.leader.goal("suspend")
    stopped = [worker.wait_for_phase("suspended")["iteration"] for worker in generation.workers]
    assert len(set(stopped)) == 1
    assert [worker.end() for worker in generation.workers] == [0, 0, 0]


def test_a_successor_without_the_secret_gets_no_state(agent: LocalAgent) -> None:
    assignment = regression(iterations=60, device=PACE)
    old = agent.start_generation(REGRESSION, assignment, 1).wait_until_ready().train_from_nothing()
    old.wait_for_iteration(2)
    stranger = agent.start_generation(
        REGRESSION, regression(iterations=60, generation=2, secret="guessed"), 1
    ).wait_until_ready()
    stranger.train_from(old)
    point = old.checkpoint_files()
    old.leader.wait_for_phase("handed_over")
    stranger.leader.wait_for_phase("loading")
    refused = lambda: "without the job's secret" in old.leader.log()  # noqa: E731
    old.leader.wait_for(lambda _message: refused())
    assert stranger.leader.of_kind("event") == []
    # The control plane gives up on the handover and names the durable checkpoint: the waiting worker follows.
    stranger.train_from_checkpoint(point)
    assert stranger.leader.wait_for_event("first_iteration")["iteration"] == point.iteration + 1
    assert stranger.report()["iterations"] == 60


def test_a_generation_waiting_for_a_state_can_be_suspended(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(generation=2), 2).wait_until_ready()
    holder = {"tier": "memory", "address": LOOPBACK, "port": free_port()}
    nobody = {
        "from": "handover", "generation": 1, "shards": [{"id": 0, "reader": 1, "holders": [holder]}],
    }  # fmt: skip
    generation.goal("train", nobody)
    generation.leader.wait_for_phase("loading")
    generation.goal("suspend")
    for worker in generation.workers:
        assert "iteration" not in worker.wait_for_phase("suspended")
        assert worker.end() == 0


def test_ranks_broadcast_the_model_only_when_training_from_nothing(agent: LocalAgent) -> None:
    """A loaded state would overwrite it."""
    size = 4 << 20
    device = emulated(network=1e9)
    assignment = {
        "function": {"entry": "large_state:LargeState"},
        "hyperparameters": {"global_batch_size": 8, "state_bytes": size},
        "termination": {"max_iterations": 3, "target": None},
        "device": device,
    }  # fmt: skip
    links = agent.link_server(ServerLinks.from_message(device["links"]), 0)
    generation = agent.start_generation(LARGE_STATE, assignment, 2).wait_until_ready()
    assert sum(map(sum, (carried.values() for carried in links.carried().values()))) < size / 10
    generation.train_from_nothing().leader.wait_for_event("first_iteration")
    assert sum(links.carried()[WITHIN_SERVER].values()) >= size, "then all get the first one's"
