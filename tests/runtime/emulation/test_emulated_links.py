"""Exchanges of emulated accelerators take the time of their servers' links, and overlap as on real GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.runtime.conftest import FUNCTIONS, emulated, regression
from tests.runtime.emulation.test_device_models import FakeTime
from tests.runtime.test_own_groups import pair_of_ranks
from workers.runtime import own_groups
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_worker import Message
from workers.runtime.emulation import emulated_time
from workers.runtime.emulation.emulated_network import EmulatedGroup
from workers.runtime.emulation.emulated_time import EmulatedClock, Overrun
from workers.runtime.emulation.places import Places
from workers.runtime.failures import is_peer_loss
from workers.runtime.profiling import VOID_OVERRUN

WIDE = FUNCTIONS / "wide.py"
WIDTH = 512
ATTEMPTS = 5
LAYER_BYTES = 4 * WIDTH**2
SAME_SERVER = {"servers": [0, 0], "racks": [0, 0]}
TWO_SERVERS = {"servers": [0, 1], "racks": [0, 0]}
TWO_RACKS = {"servers": [0, 1], "racks": [0, 1]}


def _measure(
    agent: LocalAgent,
    places: dict[str, list[int]],
    *,
    layers: int = 1,
    seconds: float = 0.6,
    **device: Any,
) -> Message:
    """Return the level of two GPUs, measured for `seconds`."""
    assignment = {
        "function": {"entry": "wide:Wide"},
        "hyperparameters": {"global_batch_size": 4, "layers": layers, "width": WIDTH},
        "purpose": "profiling",
        "profile": {"levels": [2], "seconds_per_level": seconds, "max_seconds": 60},
        "device": emulated(**device),
        "places": places,
        "seed": 3,
    }
    generation = agent.start_generation(WIDE, assignment, len(places["servers"]))
    generation.leader.wait_for_event("profile_done")
    assert [worker.end() for worker in generation.workers] == [0, 0]
    (level,) = [event for event in generation.leader.of_kind("event") if event["kind"] == "profile_level"]
    return level


def _measure_in_time(*arguments: Any, **options: Any) -> Message:
    """Return the level of two GPUs, measured again while this machine is too slow."""
    for _ in range(ATTEMPTS):
        level = _measure(*arguments, **options)
        if level["overrun"] <= VOID_OVERRUN:
            return level
    pytest.fail(f"in {ATTEMPTS} measurements the machine kept the pace in none")


def _seconds(level: Message) -> float:
    return 1 / level["iterations_per_second"]


def test_an_all_reduce_takes_no_less_than_its_links_allow(agent: LocalAgent) -> None:
    """Holds on a slow machine, too. The tested link is five times slower than the others."""
    slow = 2 * (LAYER_BYTES / 2) / 0.05
    rates: dict[str, Any] = {"within_server": 5 * slow, "network": slow, "spine": {"bytes_per_second": 1e12}}
    level = _measure(agent, TWO_SERVERS, seconds=0.1, **rates)
    assert _seconds(level) >= 0.02 + 0.05


@pytest.mark.parametrize(
    ("places", "link", "senders"),
    [(SAME_SERVER, "within_server", 2), (TWO_SERVERS, "network", 1), (TWO_RACKS, "spine", 1)],
    ids=["within the server", "to the other server", "through the spine"],
)
@pytest.mark.live
def test_an_all_reduce_takes_as_long_as_the_links_on_its_way(
    agent: LocalAgent, places: dict[str, list[int]], link: str, senders: int
) -> None:
    # The tested link is five times slower than the others, so only it explains the duration. Each rank sends
    # half of the layer twice; within a server both ranks share its link.
    slow = senders * 2 * (LAYER_BYTES / 2) / 0.1
    rates = {"within_server": 5 * slow, "network": 5 * slow}
    if link == "spine":
        changed: dict[str, Any] = {**rates, "spine": {"bytes_per_second": slow}}
    else:
        changed = {**rates, link: slow, "spine": {"bytes_per_second": 1e12}}
    level = _measure_in_time(agent, places, **changed)
    assert 0.02 + 0.1 <= _seconds(level) < 1.3 * (0.02 + 0.1)


@pytest.mark.live
def test_an_all_reduce_overlaps_with_the_backward_pass(agent: LocalAgent) -> None:
    """The last exchange cannot overlap with the computation; those of earlier layers are hidden."""
    compute_seconds, sent_seconds = 0.3, 0.2
    network = 4 * LAYER_BYTES / sent_seconds
    level = _measure_in_time(agent, TWO_SERVERS, layers=4, fixed_seconds=compute_seconds, network=network)
    # The last bucket leaves after the computation; the first has gone meanwhile.
    assert compute_seconds <= _seconds(level) < compute_seconds + 0.9 * sent_seconds


@pytest.mark.live
def test_ranks_of_a_server_share_its_way_out(agent: LocalAgent) -> None:
    """Four ranks, two on each of two servers: two pairs cross at the same time."""
    network = LAYER_BYTES / 0.05
    alone = _measure_in_time(agent, TWO_SERVERS, network=network)
    four = {"servers": [0, 1, 0, 1], "racks": [0, 0, 0, 0]}
    assignment = {
        "function": {"entry": "wide:Wide"},
        "hyperparameters": {"global_batch_size": 4, "width": WIDTH},
        "purpose": "profiling",
        "profile": {"levels": [4], "seconds_per_level": 1.8, "max_seconds": 60},
        "device": emulated(network=network),
        "places": four,
        "seed": 3,
    }
    generation = agent.start_generation(WIDE, assignment, 4)
    together = generation.leader.wait_for_event("profile_level")
    # A server sends two layers in each iteration, so at least 0.1 s: computation hides behind it. Rank 0 may
    # be half a layer ahead of the other rank when the measurement ends.
    seconds = _seconds(dict(together))
    iterations = 1.8 / seconds
    assert seconds * iterations >= (2 * iterations - 0.5) * LAYER_BYTES / network
    # A single pair needs less time.
    assert _seconds(alone) < 1.3 * (0.02 + LAYER_BYTES / network)


def test_a_measurement_that_this_machine_is_too_slow_for_is_void(agent: LocalAgent) -> None:
    level = _measure(agent, SAME_SERVER, seconds=0.1, fixed_seconds=1e-5, within_server=1e12)
    assert level["overrun"] > 0.05


def test_a_frozen_host_counts_as_lost_time_within_an_iteration_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This time belongs to neither the device nor its links; the measurement must count it, from any
    thread."""
    host = FakeTime()
    monkeypatch.setattr(emulated_time, "time", host)
    monkeypatch.setattr("emulated_links.client.time", host)
    clock = EmulatedClock()
    clock.begin(patience_seconds=0.01)
    overrun, began_at = Overrun(clock), clock.at
    clock.spend(0.005)
    host.now += 0.2
    threads = [Thread(target=clock.now) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.reach(clock.now() + 0.02)
    assert 0.18 < clock.lost_seconds <= clock.at - began_at
    assert overrun.share() > 1, "a fortieth of a second was emulated"
    # Lag between iterations does not count.
    host.now += 0.1
    lost_seconds = clock.lost_seconds
    clock.now()
    assert clock.lost_seconds == lost_seconds


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_training_comes_to_the_same_over_emulated_links(agent: LocalAgent, world_size: int) -> None:
    losses = []
    for device in ({"kind": "cpu"}, emulated(fixed_seconds=0.001)):
        assignment = regression(iterations=12, device=device)
        generation = agent.start_generation(FUNCTIONS / "regression.py", assignment, world_size)
        report = generation.wait_until_ready().train_from_nothing().report()
        losses.append(report["final"]["loss"])
        generation.stop()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.fixture
def without_peer() -> Iterator[EmulatedGroup]:
    """Yield an own group of the runtime's whose peer is gone."""
    emulation = SimpleNamespace(
        clock=EmulatedClock(), places=Places((0, 0), (0, 0)), latency_bytes=lambda _: 1e9, received_at=0.0
    )
    carrier = pair_of_ranks()[0]
    group = EmulatedGroup(carrier, [0, 1], emulation)  # type: ignore[arg-type]
    own_groups.own(group)
    yield group
    own_groups.disown(group)


@pytest.mark.parametrize(
    "collective",
    [
        lambda group, tensor: group.allreduce([tensor]),
        lambda group, tensor: group.allgather([[torch.zeros(4), torch.zeros(4)]], [tensor]),
        lambda group, tensor: group.all_to_all_single(torch.zeros(4), tensor, [], []),
        lambda group, _: group.barrier(),
    ],
)
def test_a_collective_raises_when_a_peer_is_gone(
    without_peer: EmulatedGroup, collective: Callable[[EmulatedGroup, Tensor], dist.Work]
) -> None:
    work = collective(without_peer, torch.ones(4))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Connection closed") as raised:
            work.wait()
        assert is_peer_loss(raised.value)
    with pytest.raises(RuntimeError, match="Connection closed"):
        work.get_future().wait()


def test_a_peer_lost_while_models_are_compared_is_a_lost_peer(
    without_peer: EmulatedGroup,
) -> None:
    """DDP compares them in C++: without the exception it would read sizes that never arrived."""
    with pytest.raises(RuntimeError, match="Connection closed") as raised:
        dist._verify_params_across_processes(without_peer, [torch.zeros(3)], None)
    assert is_peer_loss(raised.value)
