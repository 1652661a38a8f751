"""Installs requirements in addition to the runtime's PyTorch and what the nodes already have.

An installer that is only *constrained* to the runtime's torch searches for that build in the index, which
lacks builds such as ``2.13.0+cpu``, so nothing that depends on torch could be resolved. It therefore works
in an empty environment that declares the runtime's torch, numpy and their dependencies as installed. What it
adds is the overlay, which never contains a second torch.

Only wheels are installed: unpacking one runs no code of its author, which matters because this happens in the
platform's own process.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scheduling.services.long_work.installer_process import read_tail, run_installer

KEPT_LOG_CHARACTERS = 20_000
#: Packages that the overlay may not replace: workers have imported both before they know user code.
FIXED = ("torch", "numpy")
#: The files of a distribution's metadata that an installer reads. Its list of files is left out, since none
#: of them exists here.
_METADATA = ("METADATA", "WHEEL", "INSTALLER")
#: Variables passed to the installer: where packages come from and how to reach that place. Nothing else of
#: the platform's environment is passed.
_PASSED_ON = (
    "PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL",
    "UV_INDEX",
    "UV_INDEX_STRATEGY", "UV_FIND_LINKS", "UV_HTTP_TIMEOUT", "UV_TORCH_BACKEND",
)  # fmt: skip


@dataclass(frozen=True)
class RequirementInstaller:
    """An installer that works in ``folder``.

    ``report`` is called with the end of its output while it runs; an exception from it ends the installation.
    """

    folder: Path
    report: Callable[[str], None]

    def install(self, requirements: str, overlay: Path) -> tuple[bool, str]:
        """Install in addition to the runtime's torch, numpy and dependencies, and move the added packages to
        ``overlay``.

        Return success and the installer's output.
        """
        if self._run(["venv", "--quiet", "--python", sys.executable, str(self._home)]) != 0:
            return False, self.output()
        site = next(self._home.glob("lib/python*/site-packages"))
        given = _declare_runtime(site)
        before = {path.name for path in site.iterdir()}
        (self.folder / "requirements.txt").write_text(requirements)
        (self.folder / "constraints.txt").write_text(
            "".join(f"{name}=={given[name]}\n" for name in FIXED if name in given)
        )
        if self._run(self._installation()) != 0:
            return False, (self.output() + _hint(given))[-KEPT_LOG_CHARACTERS:]
        overlay.mkdir()
        for path in site.iterdir():
            if path.name not in before:
                shutil.move(path, overlay / path.name)
        return True, self.output()

    def output(self) -> str:
        """Return the output so far."""
        return read_tail(self._log, self.folder, KEPT_LOG_CHARACTERS)

    @property
    def _home(self) -> Path:
        return self.folder / "environment"

    @property
    def _log(self) -> Path:
        return self.folder / "output.log"

    def _run(self, arguments: Sequence[str]) -> int:
        return run_installer(
            [sys.executable, "-m", "uv", *arguments],
            folder=self.folder,
            environment=_environment(self.folder),
            log=self._log,
            report=self.report,
        )

    def _installation(self) -> list[str]:
        command = ["pip", "install", "--no-progress", "--only-binary", ":all:"]
        command += ["--python", str(self._home / "bin" / "python"), "--link-mode", "copy"]
        command += ["--constraint", str(self.folder / "constraints.txt")]
        command += ["--requirement", str(self.folder / "requirements.txt")]
        for place in os.environ.get("PIP_FIND_LINKS", "").split():
            command += ["--find-links", place]
        return command


def _hint(given: dict[str, str]) -> str:
    brought = " and ".join(f"{name} {given[name]}" for name in FIXED if name in given)
    return (
        f"\nThe nodes bring {brought}; a requirement that excludes these versions cannot be installed. "
        "Packages are installed from wheels only: what is published as source alone is not found.\n"
    )


def _declare_runtime(site: Path) -> dict[str, str]:
    """Declare the runtime's packages as installed in the environment. Return their versions by name."""
    given: dict[str, str] = {}
    for distribution in _with_dependencies(FIXED):
        given[canonicalize_name(distribution.name)] = distribution.version
        _declare_installed(distribution, site)
    return given


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**kept, "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")}


def _with_dependencies(names: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """Yield the installed distributions with these names and all their dependencies, each once."""
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
