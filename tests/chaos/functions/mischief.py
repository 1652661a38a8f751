"""A function that trains a line, and performs its hyperparameter `mischief` after `after_seconds`.

It tries what user code can try: false messages to the runtime and to the agent's socket, reading other
processes, and taking memory, processes, descriptors and log without limit. `LOOKED` lines in its log name
what a spy could read.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction, artifact_path

SOCKET = Path(__file__).resolve().parent.parent / "agent.sock"
FLOOD_BYTES = 200 << 20


class Mischief(TrainingFunction):
    """Hyperparameters: `global_batch_size`, `mischief`, `after_seconds` [0], `variant` [0], which forces a
    new measurement."""

    #: A lie, so that all mischief uses the one curve that was measured while it was harmless.
    speed_neutral = {"mischief", "after_seconds"}

    def __init__(self, hyperparameters: Any) -> None:
        super().__init__(hyperparameters)
        self.acts_at = time.monotonic() + float(self.hyperparameters.get("after_seconds", 0))
        self.printed = 0

    def init_model(self) -> nn.Module:
        return nn.Linear(8, 1)

    def init_dataset(self) -> Dataset[Any]:
        places = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(places, places.sum(dim=1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> Any:
        places, heights = batch
        loss = functional.mse_loss(model(places), heights)
        if time.monotonic() < self.acts_at:
            return loss
        said = MISCHIEF[self.hyperparameters["mischief"]](self)
        return loss if said is None else (loss, said)

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        if self.hyperparameters["mischief"] != "huge_artifacts":
            return {}
        folder = artifact_path("plain.txt").parent
        for name in ("n" * 201, "turned\u202ename", "line\nbreak", "\udcff"):
            try:
                (folder / name).write_text("x")
            except (OSError, UnicodeError) as error:
                print("not written:", error)
        for name, target in (("passwords", "/etc/passwd"), ("first", "/proc/1/environ")):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(target)
        return {"accuracy\0": 1.0, "\ud800": 0.5}


def poisoned_metrics(function: Mischief) -> dict[str, Any]:
    said: dict[str, Any] = {
        "nul\0": 1.0, "\ud800": 1.0, "turned\u202e": 1.0, "n" * 5000: 1.0, "not a number": float("nan"),
        "endless": float("inf"), "text": "1", "list": [1.0], "huge": 10**400, "fine": 1.0,
    }  # fmt: skip
    return said | {f"many {number}": 1.0 for number in range(300)}


def forged_messages(function: Mischief) -> None:
    """Send the agent forged messages of the runtime: impossible ones, and ones that would stop all
    planning."""
    nested: Any = 1.0
    for _ in range(300):
        nested = [nested]
    events: list[dict[str, Any]] = [
        {"kind": "first_iteration", "iteration": 1},
        {"kind": "first_iteration", "iteration": 1, "pause_seconds": 1e15},
        {"kind": "profile_level", "gpus": 1},
        {"kind": "profile_level", "gpus": 1, "iterations_per_second": 1e-30, "train_seconds": 1e300},
        {"kind": "profile_level", "gpus": 10**9, "iterations_per_second": 1e30, "pause_seconds": -1.0},
        {"kind": "shard_stored", "iteration": 10**30, "uri": "/etc/passwd", "bytes": -1},
        {"kind": "failed", "reason": "because", "message": "\0" * 5000},
        {"kind": nested},
    ]
    messages: list[Any] = [
        *({"event": {"id": str(uuid.uuid4()), **event}} for event in events),
        {"event": {"id": "\ud800", "kind": "completed"}},
        {"metrics": {"iteration": 1, "values": {"a\0": 1.0}, "iterations_per_second": 1e-30}},
        {"metrics": {"iteration": -1, "values": nested}},
        {"phase": "unheard of"},
        {"phase": "preparing", "iteration": 10**400},
        {
            "file": {
                "path": "../../credential.json",
                "kind": "checkpoint",
                "iteration": 1,
                "reason": "periodic",
            }
        },
        {"file": {"path": "out/" + "n" * 300, "kind": "final", "iteration": 1, "reason": "max_iterations"}},
        {"hello": {"warm": True, "job": "j", "generation": 1, "rank": 0, "pid": 1}},
        {"surprise": nested},
        17,
    ]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(1.0)
            connection.connect(str(SOCKET))
            for message in messages:
                connection.sendall(json.dumps(message).encode() + b"\n")
            connection.sendall(b"[" * 20_000 + b"\n" + b"\xff\xfe\n" + b'{"phase": "training", "iteration"')
        except OSError as error:
            print("the agent hung up:", error)


def claims_to_be_done(function: Mischief) -> None:
    """Claim that nearly all iterations are done: a job that is promised the GPUs next waits for them."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(1.0)
            connection.connect(str(SOCKET))
            for iteration in (10 ** (power / 4) for power in range(4, 28)):
                claim = {"iteration": int(iteration), "values": {}, "iterations_per_second": 1.0}
                connection.sendall(json.dumps({"metrics": claim}).encode() + b"\n")
        except OSError as error:
            print("the agent hung up:", error)


def glutton(function: Mischief) -> None:
    held = []
    while True:
        held.append(b"x" * (32 << 20))


def fork_bomb(function: Mischief) -> None:
    while True:
        try:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        except OSError:
            time.sleep(0.05)


def descriptors(function: Mischief) -> None:
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        print("no more descriptors after", len(held), error)
    for descriptor in held:
        os.close(descriptor)


def log_flood(function: Mischief) -> None:
    """Four megabytes in each iteration, 200 in all."""
    if function.printed < FLOOD_BYTES:
        text = ("all work and no play " * 50 + "\n") * 4000
        sys.stdout.write(text)
        sys.stdout.flush()
        function.printed += len(text)


def hang(function: Mischief) -> None:
    time.sleep(600)


def sudden_death(function: Mischief) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def clean_exit(function: Mischief) -> None:
    raise SystemExit(0)


def deep_recursion(function: Mischief) -> None:
    deep_recursion(function)


def look_around(function: Mischief) -> None:
    """Try every way into every visible process, and into the platform's files."""
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def seize(pid: int) -> None:
        if library.ptrace(0x4206, pid, None, None) < 0:
            raise OSError("refused")

    ways: dict[str, Callable[[int], Any]] = {
        "memory": lambda pid: Path(f"/proc/{pid}/mem").open("rb").close(),
        "environment": lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
        "descriptors": lambda pid: os.listdir(f"/proc/{pid}/fd"),
        "root": lambda pid: os.listdir(f"/proc/{pid}/root/"),
        "tracing": seize,
    }
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    box = SOCKET.parent
    files = [
        *map(str, (box.parent / "lease", box.parent / "launcher.json", box.parent / "launch.json")),
        "/etc/shadow",
    ]
    opened = [f"{name} of {pid}" for pid in others for name, way in ways.items() if _works(way, pid)]
    opened += [name for name in files if _works(Path(name).read_bytes)]
    print("LOOKED " + json.dumps({"others": len(others), "opened": opened}), flush=True)


def _works(action: Callable[..., Any], *arguments: Any) -> bool:
    try:
        action(*arguments)
    except OSError:
        return False
    return True


MISCHIEF: dict[str, Callable[[Mischief], dict[str, Any] | None]] = {
    "poisoned_metrics": poisoned_metrics,
    "forged_messages": forged_messages,
    "claims_to_be_done": claims_to_be_done,
    "huge_artifacts": lambda function: None,
    "nothing": lambda function: None,
    "glutton": glutton,
    "fork_bomb": fork_bomb,
    "descriptors": descriptors,
    "log_flood": log_flood,
    "hang": hang,
    "sudden_death": sudden_death,
    "clean_exit": clean_exit,
    "deep_recursion": deep_recursion,
    "look_around": look_around,
}
