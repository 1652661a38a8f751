"""A worker without torch: speaks the protocol, counts iterations, and does what its hyperparameters ask for.

Hyperparameters: `crash` (end silently after the first iteration), `final_after` (complete after that many
iterations), `shout` (print that many lines), `spawn` (start a process that tries to outlive everything),
`deaf` (ignore all goals), `babble` (send malformed messages without end), `look` (print, as JSON, what the
worker can see, these paths included), `link` (write its result as a link to that path), `hoard` (take memory
without end in a loader process, and report the loader's death as an error).
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

BOX = Path(sys.argv[sys.argv.index("--box") + 1])


def say(line: str) -> None:
    """Print a whole line at once: two threads print, and `print` writes each argument separately."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Worker:
    def __init__(self) -> None:
        self.assignment: dict[str, Any] = {}
        self.wishes: dict[str, Any] = {}
        self.goal, self.phase, self.iteration = "prepare", "", 0
        self.start: dict[str, Any] = {}
        self.unstored: dict[str, dict[str, Any]] = {}
        self.unacknowledged: dict[str, dict[str, Any]] = {}
        self.connection: socket.socket | None = None
        self.changed = threading.Condition()

    def dial(self) -> None:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(BOX / "agent.sock"))
            except OSError:
                connection.close()
                time.sleep(0.1)
                continue
            with self.changed:
                self.connection = connection
                self.send({"hello": self.hello()})
                if self.phase:
                    self.send({"phase": self.phase, "iteration": self.iteration})
                for message in [*self.unacknowledged.values(), *self.unstored.values()]:
                    self.send(message)
            with contextlib.suppress(OSError):
                for line in connection.makefile("rb"):
                    self.take(json.loads(line))
            with self.changed:
                self.connection = None

    def hello(self):
        if not self.assignment:
            return {"warm": True, "job": None, "generation": None, "rank": None, "pid": os.getpid()}
        return {
            "warm": False,
            "pid": os.getpid(),
            **{k: self.assignment[k] for k in ("job", "generation", "rank")},
        }

    def send(self, message) -> None:
        with self.changed:
            if self.connection is not None:
                try:
                    self.connection.sendall(json.dumps(message).encode() + b"\n")
                except OSError:
                    self.connection = None

    def take(self, message) -> None:
        with self.changed:
            if "assign" in message:
                self.assignment = message["assign"]
            elif "goal" in message:
                say(f"goal {message['goal']}")
                self.goal, self.start = message["goal"], message["start"] or self.start
            elif "lease" in message:
                say(f"lease {message['lease']}")
            elif "stored" in message:
                self.unstored.pop(message["stored"], None)
            elif "acknowledged" in message:
                for identifier in message["acknowledged"]:
                    self.unacknowledged.pop(identifier, None)
            self.changed.notify_all()

    def become(self, phase) -> None:
        self.phase = phase
        self.send({"phase": phase, "iteration": self.iteration})

    def event(self, **body) -> None:
        identifier = str(uuid.uuid4())
        message = {"event": {"id": identifier, **body}}
        self.unacknowledged[identifier] = message
        self.send(message)

    def write(self, reason) -> None:
        path = f"out/state-{self.iteration}.pt"
        (BOX / path).write_bytes(b"state of iteration %d" % self.iteration)
        message = {
            "file": {"path": path, "kind": "checkpoint", "iteration": self.iteration, "reason": reason}
        }
        self.unstored[path] = message
        self.send(message)

    def finish(self) -> None:
        self.become("finishing")
        folder = BOX / "out/final"
        folder.mkdir()
        (folder / "weights.pt").write_bytes(b"weights")
        if self.wishes.get("link"):
            (folder / "stolen").symlink_to(self.wishes["link"])
        message = {
            "path": "out/final",
            "kind": "final",
            "iteration": self.iteration,
            "reason": "max_iterations",
        }
        self.unstored["out/final"] = {
            "file": {**message, "metrics": {"loss": 0.5}, "sample_order_digest": "abc"}
        }
        self.send(self.unstored["out/final"])
        self.wait(lambda: not self.unstored)
        self.become("completed")

    def wait(self, condition) -> None:
        with self.changed:
            self.changed.wait_for(condition)

    def run(self) -> None:
        threading.Thread(target=self.dial, daemon=True).start()
        self.wait(lambda: bool(self.assignment))
        self.wishes = self.assignment["hyperparameters"]
        self.become("preparing")
        say(f"bundle {sorted(path.name for path in (BOX / 'bundle').iterdir())}")
        if self.wishes.get("look"):
            say("SEEN " + json.dumps(look(self.wishes["look"])))
        if self.wishes.get("shout"):
            say("x" * 99 + "\n" * self.wishes["shout"])
        if self.wishes.get("spawn"):
            code = "import os, time; os.fork(); time.sleep(1000)"
            subprocess.Popen([sys.executable, "-c", code, self.wishes["spawn"]], start_new_session=True)
        self.become("ready")
        self.wait(lambda: self.goal != "prepare")
        self.become("loading")
        if "files" in self.start:
            for path in self.start["files"].values():
                say(f"loaded {(BOX / path).read_text()}")
            self.iteration = self.start["iteration"]
        self.become("training")
        self.train()

    def babble(self) -> None:
        nested: Any = 1.0
        for _ in range(300):
            nested = [nested]
        nonsense = [
            {"metrics": {"iteration": 1, "values": {"a\0": 1.0}}},
            {"metrics": {"iteration": 1, "values": {"\ud800": 1.0}}},
            {"metrics": {"iteration": 1, "values": {f"m{n}": 1.0 for n in range(1000)}}},
            {"metrics": {"iteration": 1, "values": nested}},
            {"metrics": {"iteration": 1, "values": {"fine": 1.0}}},
            {"event": {"id": "x", "kind": "first_iteration", "iteration": 1}},
            {"event": {"id": "y", "kind": "profile_level", "gpus": 1}},
            {
                "file": {
                    "path": "out/" + "n" * 300,
                    "kind": "final",
                    "iteration": 1,
                    "reason": "max_iterations",
                }
            },
            {"phase": "preparing"},
            {"phase": "unheard of"},
            {"surprise": nested},
            17,
        ]
        for number in range(300):
            for message in nonsense:
                self.send(message)
            self.event(kind="failed", reason="because", message="\0" * number)

    def hoard(self) -> None:
        held = []
        loader = os.fork()
        while loader == 0:
            held.append(b"x" * (8 << 20))
            time.sleep(0.01)
        os.waitpid(loader, 0)
        self.event(kind="failed", reason="function_error", message="my loader was killed")
        self.become("failed")
        self.wait(lambda: not self.unacknowledged)
        os._exit(1)

    def train(self) -> None:
        first = True
        while self.goal == "train" or self.wishes.get("deaf"):
            time.sleep(0.02)
            self.iteration += 1
            self.send({"phase": "training", "iteration": self.iteration})
            if first:
                self.event(kind="first_iteration", iteration=self.iteration, pause_seconds=0.1)
                first = False
                self.send(
                    {
                        "metrics": {
                            "iteration": self.iteration,
                            "values": {"loss": 1.0},
                            "iterations_per_second": 50,
                        }
                    }
                )
                if self.wishes.get("babble"):
                    threading.Thread(target=self.babble, daemon=True).start()
                if self.wishes.get("hoard"):
                    self.hoard()
                if self.wishes.get("crash"):
                    os.kill(os.getpid(), signal.SIGKILL)
            if self.iteration == self.wishes.get("final_after"):
                self.finish()
                return
        if self.goal == "suspend":
            self.become("suspending")
            self.write("suspend")
            self.wait(lambda: not self.unstored)
            self.become("suspended")


def look(paths):
    """Return what is visible from inside the sandbox."""

    def readable(path):
        try:
            return os.listdir(path) if os.path.isdir(path) else Path(path).read_text(errors="replace")[:50]
        except OSError as error:
            return f"error: {type(error).__name__}"

    def writable(path):
        try:
            (Path(path) / "probe").write_text("x")
        except OSError:
            return False
        return True

    status = Path("/proc/self/status").read_text()
    # The listed folder has its own descriptor meanwhile.
    descriptors = [
        number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")
    ]
    return {
        "environment": dict(os.environ),
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{number}") for number in descriptors),
        "arguments": sys.argv,
        "main": getattr(sys.modules["__main__"].__spec__, "name", None),
        "modules": sorted(name for name in sys.modules if name.startswith("workers")),
        "random": random.random(),
        "hash": hash("the same in every worker"),
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "paths": {path: readable(path) for path in paths},
        "writable": {
            path: writable(path) for path in ("/", "/etc", "/usr", "/box", "/box/bundle", "/box/out", "/tmp")
        },
        "capabilities": [line.split()[1] for line in status.splitlines() if line.startswith("Cap")],
        "no_new_privileges": "NoNewPrivs:\t1" in status,
        "sys_path": sys.path,
        "user": os.getuid(),
    }


if __name__ == "__main__":
    Worker().run()
