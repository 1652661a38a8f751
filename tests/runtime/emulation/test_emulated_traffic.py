"""Traffic over emulated links is counted by class: gradients, state, or the class of a group."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from communication.profiles.placement import PlacementShape
from emulated_links.rates import EXPERTS, GRADIENTS, NETWORK, STATE, ServerLinks
from tests.runtime.conftest import EXAMPLES, emulated
from tests.runtime.synchronisation.test_zen_plans import DENSE, SPARSE, recommender, zen
from workers.runtime.at_home.local_agent import LocalAgent, runtime_plan
from workers.runtime.emulation.emulated_network import EmulatedGroup, Emulation
from workers.runtime.emulation.places import Places

LINKS = emulated()["links"]
TWO_SERVERS = {"servers": [0, 1], "racks": [0, 0]}


def _carried(box: Path, description: str) -> dict[str, float]:
    """Return bytes by class that a rank's network carries of an all-to-all and a broadcast between two
    ranks."""
    store = dist.HashStore()

    def rank(number: int) -> Emulation:
        emulation = Emulation(ServerLinks.from_message(LINKS), Places((0, 1), (0, 0)), box)
        inner = dist.ProcessGroupGloo(store, number, 2, timedelta(seconds=60))
        group = EmulatedGroup(inner, [0, 1], emulation)
        group._set_group_desc(description)
        values = torch.ones(2000)
        group.alltoall_base(torch.empty(2000), values, [], []).wait()
        options = dist.BroadcastOptions()
        options.rootRank = 0
        group.broadcast([values], options).wait()
        return emulation

    with ThreadPoolExecutor(2) as threads:
        first, _ = threads.map(rank, range(2))
    return first.client.carried()[NETWORK]


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        # Half of the tensor goes to the other rank in the first, all of it in the second.
        ("undefined", {GRADIENTS: 4000, STATE: 8000, EXPERTS: 0}),
        (GRADIENTS, {GRADIENTS: 12000, STATE: 0, EXPERTS: 0}),
        (EXPERTS, {GRADIENTS: 0, STATE: 0, EXPERTS: 12000}),
    ],
)
def test_a_group_carries_what_its_description_says(
    tmp_path: Path, description: str, expected: dict[str, float]
) -> None:
    assert _carried(tmp_path, description) == pytest.approx(expected, abs=0.01)


def test_traffic_of_zen_counts_as_gradients(agent: LocalAgent) -> None:
    plan = runtime_plan(zen(PlacementShape(2, 1), "zen"), SPARSE, DENSE, family="lossless")
    assignment = recommender(runtime_plan=plan, device=emulated(), places=TWO_SERVERS)
    generation = agent.start_generation(EXAMPLES / "recommender.py", assignment, 2).wait_until_ready()
    generation.train_from_nothing().report()
    carried = agent.link_server(ServerLinks.from_message(LINKS), 0).carried()[NETWORK]
    assert carried[EXPERTS] == 0
    assert carried[GRADIENTS] > 0
