"""Installing requirements beside the runtime's PyTorch: what the nodes have already is taken as given.

An installer that is only *constrained* to the runtime's torch looks for that build in the index, where one
such as ``2.13.0+cpu`` does not lie: nothing that depends on torch could be resolved. So it works in an empty
environment that knows the runtime's torch and numpy, with all that these depend on, as installed. What it
adds is the overlay; a second torch never comes.

Only wheels are installed, by name: unpacking one runs no code of its author, which matters because this
happens in the platform's own process.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

KEPT_LOG_CHARACTERS = 20_000
#: What the overlay may not replace: the workers have imported both before a person's code is known.
FIXED = ("torch", "numpy")
#: Of a distribution's metadata, what an installer reads. Its list of files is left out: none of them is
#: there.
_METADATA = ("METADATA", "WHEEL", "INSTALLER")
#: Handed on to the installer: where packages come from, and how to reach that place. Nothing else of the
#: platform's environment.
_PASSED_ON = (
    "PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL",
    "UV_INDEX",
    "UV_INDEX_STRATEGY", "UV_FIND_LINKS", "UV_HTTP_TIMEOUT", "UV_TORCH_BACKEND",
)  # fmt: skip


@dataclass(frozen=True)
class RequirementInstaller:
    """One environment to install into. ``site``: its folder of packages; ``given``: what the runtime brings,
    with versions."""

    folder: Path
    site: Path
    given: dict[str, str]

    @classmethod
    def beside_the_runtime(cls, folder: Path) -> RequirementInstaller:
        """An environment in ``folder`` that knows the runtime's torch and numpy, and theirs, as installed."""
        home = folder / "environment"
        subprocess.run(
            [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(home)],
            check=True,
            capture_output=True,
            env=_environment(folder),
        )
        site = next(home.glob("lib/python*/site-packages"))
        given: dict[str, str] = {}
        for distribution in _with_dependencies(FIXED):
            given[canonicalize_name(distribution.name)] = distribution.version
            _declare_installed(distribution, site)
        return cls(folder, site, given)

    def install(self, requirements: str, overlay: Path, *, limit_seconds: float) -> tuple[bool, str]:
        """Install and move what was added to ``overlay``. Returns success and what the installer printed.

        Raises ``subprocess.TimeoutExpired`` when it takes longer than ``limit_seconds``.
        """
        before = {path.name for path in self.site.iterdir()}
        (self.folder / "requirements.txt").write_text(requirements)
        (self.folder / "constraints.txt").write_text(
            "".join(f"{name}=={self.given[name]}\n" for name in FIXED if name in self.given)
        )
        done = subprocess.run(
            self._command(),
            cwd=self.folder,
            env=_environment(self.folder),
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
        output = (done.stdout + done.stderr).replace(str(self.folder), "")
        if done.returncode != 0:
            return False, (output + self._hint())[-KEPT_LOG_CHARACTERS:]
        overlay.mkdir()
        for path in self.site.iterdir():
            if path.name not in before:
                shutil.move(path, overlay / path.name)
        return True, output[-KEPT_LOG_CHARACTERS:]

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "uv", "pip", "install", "--no-progress", "--only-binary", ":all:"]
        command += ["--python", str(self.folder / "environment" / "bin" / "python"), "--link-mode", "copy"]
        command += ["--constraint", str(self.folder / "constraints.txt")]
        command += ["--requirement", str(self.folder / "requirements.txt")]
        for place in os.environ.get("PIP_FIND_LINKS", "").split():
            command += ["--find-links", place]
        return command

    def _hint(self) -> str:
        brought = " and ".join(f"{name} {self.given[name]}" for name in FIXED if name in self.given)
        return (
            f"\nThe nodes bring {brought}; a requirement that excludes these versions cannot be installed. "
            "Packages are installed from wheels only: what is published as source alone is not found.\n"
        )


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**kept, "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")}


def _with_dependencies(names: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions of these names and all that they depend on here, each once."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # no PyTorch in this process's environment, or a dependency of another system's
        yield distribution
        needed = (Requirement(text) for text in distribution.requires or ())
        waiting += [
            item.name for item in needed if item.marker is None or item.marker.evaluate({"extra": ""})
        ]


def _declare_installed(distribution: importlib.metadata.Distribution, site: Path) -> None:
    name = canonicalize_name(distribution.name).replace("-", "_")
    folder = site / f"{name}-{distribution.version}.dist-info"
    folder.mkdir()
    for file in _METADATA:
        text = distribution.read_text(file)
        if text is not None:
            (folder / file).write_text(text)
    (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n")
