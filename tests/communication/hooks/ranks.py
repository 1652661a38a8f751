"""Runs a function on real ranks: processes with a process group of gloo."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.plugins.forking import forking

_SECONDS = 100.0


def run_on_ranks(
    ranks: int, function: Callable[..., Any], *arguments: Any, seconds: float = _SECONDS
) -> list[Any]:
    """Return the function's results by rank; the function gets the arguments, and can use torch.distributed.

    It must be at module level.
    """
    context = forking()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes = [
            context.Process(target=_run, args=(rank, ranks, folder, function, arguments), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
        stuck = [number for number, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        results = [
            torch.load(path, weights_only=False) if path.exists() else "no result"
            for path in (Path(folder, f"{rank}.pt") for rank in range(ranks))
        ]
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, str)]
    assert not stuck, f"ranks {stuck} did not end; {failed}"
    assert not failed, "\n".join(failed)
    return [result[0] for result in results]


def _run(
    rank: int, ranks: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    result: Any
    try:
        store = dist.FileStore(f"{folder}/store", ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        result = (function(*arguments),)
        # No rank leaves while others still exchange.
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - it is result to whoever started this process
        result = traceback.format_exc()
    torch.save(result, f"{folder}/{rank}.part")
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
