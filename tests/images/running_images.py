"""The services of docker/compose.yaml, started from the built images with their own commands, on this
machine's network."""

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
from launch.pip_configuration import local_places, uv_environment

BUILDAH = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
SERVICES: Mapping[str, Any] = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())["services"]


class RunningImages:
    """Containers of the images, and processes in them. ``folder`` is seen inside under its own path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The compose file reads these from `installer.env`: this machine's package indexes.
        self.installer = uv_environment()
        self._stack = ExitStack()

    def service_command(self, name: str, port: int | None = None) -> list[str]:
        """Return the compose file's command, listening on ``port`` of this machine only."""
        command: list[str] = [str(part) for part in SERVICES[name]["command"]]
        if port is not None:
            command = [re.sub(r"0\.0\.0\.0(:\d+)?", "127.0.0.1", part) for part in command]
            command = [
                f"127.0.0.1:{port}" if before == "--bind" else part for before, part in _pairs(command)
            ]
            command = [str(port) if before == "--port" else part for before, part in _pairs(command)]
        return command

    def service_environment(self, name: str, common: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables of a service: the common ones and, if the compose file passes them on, an
        installer's."""
        files = [file["path"] for file in SERVICES[name].get("env_file", ())]
        return {**common, **self.installer} if "installer.env" in files else common

    def run(self, image: str, command: list[str], environment: Mapping[str, str]) -> str:
        """Run a command to its end; return its output."""
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
        """Start a process that stays; return the path of its output."""
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
        """Return the last lines of all processes, for a failed test's message."""
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
        needed = {name: value for name, value in self.installer.items() if name in environment}
        seen = [f"{self.folder}:{self.folder}", *(f"{place}:{place}:ro" for place in local_places(needed))]
        return [
            "buildah",
            "run",
            *(part for place in seen for part in ("--volume", place)),
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
