"""The disk that one worker may fill with states of experts (decision 0033)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Nearly full disks slow down and wear out.
USABLE_SHARE = 0.9
#: A worker's successor on the same GPU writes its files before the worker deletes its own.
WORKERS_OF_A_GPU = 2
_STATES = "workers/*/box/tmp/expert-states-*"


def disk_of_worker(data: Path, gpus: int) -> int:
    """Return the bytes of states that a worker may write: an equal share of the disk for each GPU.

    States that workers already keep count as free, so that a restarted agent computes the same share.

    Args:
        data: the agent's folder, which contains its workers' boxes.
    """
    room = shutil.disk_usage(data).free + sum(map(_bytes_below, data.glob(_STATES)))
    return int(USABLE_SHARE * room) // (WORKERS_OF_A_GPU * max(1, gpus))


def _bytes_below(folder: Path) -> int:
    """Return the disk space of files, some of which may vanish meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total
