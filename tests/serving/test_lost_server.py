"""A dead server of a group ends the group on all others, at once and with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from punctual.moe import TopK, moe_layers
from tests.plugins.forking import forking
from tests.serving.test_expert_group import CPU, EXPERTS, LAYERS, Tower, build_choices, profile
from workers.runtime.at_home.local_ports import free_port
from workers.serving.assignment import GroupPlace
from workers.serving.errors import NotServingError
from workers.serving.experts.group import ExpertGroup
from workers.serving.experts.meeting import meet
from workers.serving.experts.plans import ExpertPlanner

RANKS, DYING = 3, 2


def serve(rank: int, port: int, folder: str) -> None:
    """Serve batches until the group ends. One rank dies between two layers of its batch."""
    torch.set_num_threads(1)
    place = GroupPlace(rank, RANKS, "127.0.0.1", port)
    bell = meet(place, 1, CPU, "127.0.0.1", patience_seconds=600.0)
    model = Tower(TopK(1), exact=True)
    planner = ExpertPlanner([EXPERTS] * LAYERS, RANKS, profile())
    group = ExpertGroup(moe_layers(model), planner, CPU, bell)
    if rank == DYING:
        model.layers[2].register_forward_pre_hook(lambda *_: os._exit(1))
    try:
        while True:
            with group.batch(), torch.inference_mode():
                model(torch.from_numpy(build_choices(10, rank)))
    except NotServingError as error:
        Path(folder, f"{rank}.part").write_text(f"{error}\n{group.failure}")
        Path(folder, f"{rank}.part").rename(Path(folder, str(rank)))
    os._exit(0)


def test_no_rank_waits_for_a_server_that_is_lost(tmp_path: Path) -> None:
    port, context = free_port(), forking()
    processes = [context.Process(target=serve, args=(rank, port, str(tmp_path))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100.0)
    are_stuck = [process.is_alive() for process in processes]
    for process in processes:
        process.kill()
        process.join()
    assert are_stuck == [False] * RANKS
    for rank in (0, 1):
        raised, noted = Path(tmp_path, str(rank)).read_text().splitlines()
        assert raised == noted
        assert raised.startswith("a server of the group of 3 is lost: ")
    assert not Path(tmp_path, str(DYING)).exists()
