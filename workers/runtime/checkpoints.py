"""Writes state shards and final weights to the box's `out` folder, from which the agent stores them."""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from punctual.moe.expert_paths import FILE_NAME, ExpertPaths, write_expert_paths
from workers.runtime.connection import AgentConnection
from workers.runtime.failures import WorkerFailureError
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import Shard, write_shard

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Measured:
    """When copying a shard began (monotonic clock), and for how long training paused for the copy."""

    begun: float
    copy_seconds: float


class CheckpointWriter:
    """Writes periodic checkpoints in its own thread, so that training pauses only for the copy in memory."""

    def __init__(self, box: Path, connection: AgentConnection, moves: StateMoves) -> None:
        self._moves = moves
        self._box = box
        self._connection = connection
        self._written: str | None = None
        self._work: queue.Queue[tuple[Shard, _Measured]] = queue.Queue()
        threading.Thread(target=self._write_for_ever, name="checkpoints", daemon=True).start()

    def idle(self) -> bool:
        """Return whether the last shard has been written and stored."""
        if self._work.unfinished_tasks:
            return False
        return self._written is None or self._connection.is_stored(self._written)

    def write_later(self, shard: Shard, begun: float) -> None:
        """Write a copied shard in the background, reason `periodic`. `begun`: when copying it began."""
        self._work.put((shard, _Measured(begun, time.monotonic() - begun)))

    def write_now(self, shard: Shard, reason: str) -> str:
        """Write a shard and announce it; return its path in the box.

        Raises:
            WorkerFailureError: writing to the node's disk fails.
        """
        self._work.join()
        path = _path(shard)
        if path == self._written:
            # The same state under another reason: announce it without writing it again.
            self._announce(shard, reason)
            return path
        try:
            return self._write(shard, reason)
        except OSError as error:
            raise WorkerFailureError(
                "storage_failed", f"the checkpoint cannot be written: {error}"
            ) from error

    def _write(self, shard: Shard, reason: str, measured: _Measured | None = None) -> str:
        path = _path(shard)
        begun = time.monotonic()
        write_shard(shard, self._box / path)
        self._moves.stored(shard.bytes, begun)
        self._announce(shard, reason, measured)
        return path

    def _announce(self, shard: Shard, reason: str, measured: _Measured | None = None) -> None:
        fields: dict[str, Any] = {"iteration": shard.description["iteration"], "reason": reason}
        if measured is not None:
            fields["copy_seconds"] = measured.copy_seconds
            fields["writing_seconds"] = time.monotonic() - measured.begun
        self._connection.file(_path(shard), kind="checkpoint", **fields)

    def _write_for_ever(self) -> None:
        while True:
            shard, measured = self._work.get()
            try:
                self._written = self._write(shard, "periodic", measured)
            except OSError as error:
                # The next period tries again; on suspend the same error ends the worker with a message.
                _log.error("a checkpoint cannot be written: %s", error)
            finally:
                del shard
                self._work.task_done()


def _path(shard: Shard) -> str:
    """Return a shard's path in the box."""
    return f"out/state-{shard.description['iteration']}-{shard.description['shard']}.pt"


def write_final(
    box: Path,
    artifacts: Path,
    weights: Mapping[str, Tensor],
    report: Mapping[str, Any],
    expert_paths: ExpertPaths | None = None,
) -> str:
    """Write the final weights and metrics beside the function's files; return the folder's path in the box.

    Args:
        expert_paths: paths through the experts; None if none were recorded.

    Raises:
        WorkerFailureError: writing to the node's disk fails.
    """
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        torch.save(dict(weights), artifacts / "weights.pt")
        (artifacts / "metrics.json").write_text(json.dumps(_json_safe(report), indent=1) + "\n")
        if expert_paths is not None:
            write_expert_paths(expert_paths, artifacts / FILE_NAME)
        artifacts.rename(box / "out" / "final")
    except OSError as error:
        raise WorkerFailureError("storage_failed", f"the weights cannot be written: {error}") from error
    return "out/final"


def _json_safe(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(entry) for entry in value]
    return value
