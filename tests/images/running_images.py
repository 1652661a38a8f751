"""The services of docker/compose.yaml, started from the built images with their own commands, on this machine's network."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from launch.folders import PROJECT

BUILDAH = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
SERVICES: Mapping[str, Any] = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())["services"]


class RunningImages:
    """Containers of the images, and processes in them. ``folder`` is seen inside under its own path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def service_command(self, name: str, port: int | None = None) -> list[str]:
        """What the compose file runs, listening on ``port`` of this machine alone."""
        command: list[str] = [str(part) for part in SERVICES[name]["command"]]
        if port is not None:
            command = [re.sub(r"0\.0\.0\.0(:\d+)?", "127.0.0.1", part) for part in command]
            command = [
                f"127.0.0.1:{port}" if before == "--bind" else part for before, part in _pairs(command)
            ]
            command = [str(port) if before == "--port" else part for before, part in _pairs(command)]
        return command

    def run(self, image: str, command: list[str], environment: Mapping[str, str]) -> str:
        """Run to its end; answers what was printed."""
        done = subprocess.run(
            self._command(image, command, environment),
            env=BUILDAH,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, name: str, image: str, command: list[str], environment: Mapping[str, str]) -> Path:
        """Start a process that stays; answers where it prints."""
        log = self.folder / f"{name}.log"
        process = subprocess.Popen(
            self._command(image, command, environment),
            env=BUILDAH,
            stdout=self._stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return log

    def logs(self) -> str:
        """The last lines of all processes, for the message of a test that fails."""
        return "\n".join(
            f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            for log in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """End all processes and remove the containers."""
        self._stack.close()

    def _command(self, image: str, command: list[str], environment: Mapping[str, str]) -> list[str]:
        made = subprocess.run(
            ["buildah", "from", f"localhost/punctual/{image}"],
            env=BUILDAH,
            capture_output=True,
            text=True,
            check=True,
        )
        container = made.stdout.strip()
        self._stack.callback(
            subprocess.run, ["buildah", "rm", container], env=BUILDAH, capture_output=True, check=False
        )
        variables = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        return [
            "buildah",
            "run",
            "--volume",
            f"{self.folder}:{self.folder}",
            *variables,
            container,
            "--",
            *command,
        ]


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(["", *words], words, strict=False))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=30)
    except (subprocess.TimeoutExpired, ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
