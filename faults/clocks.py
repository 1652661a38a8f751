"""Wall clock jumps: processes run under libfaketime, and a file sets the offset of each clock.

The platform does not need that library. If none works with this Python, clocks do not jump. CLOCK_MONOTONIC
and CLOCK_BOOTTIME do not change, as when a machine's clock is set.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from faults.injecting import Undo

#: Names the library; without it, the usual install paths are searched.
VARIABLE = "FAKETIME_LIBRARY"
_USUAL = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")
_PROBE_SECONDS = 10.0
#: Runs under the library and changes the clock's offset: the wall clock must follow, the monotonic clocks
#: must not, and `time.sleep` must work. Some builds of the library break `time.sleep`.
_PROBE = """
import os, time
clocks = (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
wall, before = time.time(), [time.clock_gettime(clock) for clock in clocks]
with open(os.environ["FAKETIME_TIMESTAMP_FILE"], "w") as file:
    file.write("+3600\\n")
while time.time() - wall < 3000:
    time.sleep(0.05)
time.sleep(0.05)
jumped = [time.clock_gettime(clock) - then > 3000 for clock, then in zip(clocks, before)]
assert not any(jumped), "monotonic clocks jump"
"""


class NoClocksError(RuntimeError):
    """No library can change the clocks."""


class Clocks:
    """Wall clocks of the processes started with `environment`, by name."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library, self._folder = library, folder
        self._wrong_by: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of the process of that name. Its clock has no offset at first."""
        self._wrong_by.setdefault(name, [])
        self._write(name)
        return _environment(self._library, self._file(name))

    def turn(self, names: Sequence[str], seconds: float) -> Undo:
        """Shift these clocks by ``seconds`` (negative: back), effective within two seconds. Returns a
        function that undoes it."""
        with self._lock:
            for name in names:
                self._wrong_by[name].append(seconds)
                self._write(name)

        def right() -> None:
            with self._lock:
                for name in names:
                    self._wrong_by[name].remove(seconds)
                    self._write(name)

        return right

    def wrong_by(self, name: str) -> float:
        """Return a clock's offset in seconds."""
        return sum(self._wrong_by[name])

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

    def _write(self, name: str) -> None:
        # Atomic, since a process may read it at any time.
        new = self._folder / f".{name}.new"
        new.write_text(f"{self.wrong_by(name):+.3f}\n", encoding="ascii")
        new.chmod(0o644)
        new.replace(self._file(name))


def find_library(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the first working library: the one named in the environment, or else that of the Python package
    `libfaketime` or the distribution's.

    Raises NoClocksError, with the libraries tried.
    """
    tried = []
    for library in _candidates(environment):
        trouble = _trouble_with(library)
        if not trouble:
            return library
        tried.append(f"{library} does not work here: {trouble}")
    raise NoClocksError("; ".join(tried) or f"there is no libfaketime; {VARIABLE} may name one")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    named = environment.get(VARIABLE, "")
    if named:
        yield Path(named)
        return
    package = importlib.util.find_spec("libfaketime")
    for folder in (package.submodule_search_locations or []) if package else []:
        yield from sorted(Path(folder).glob("vendor/libfaketime/src/libfaketime*.so.1"))
    for pattern in _USUAL:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")))


def _trouble_with(library: Path) -> str:
    """Return why the library cannot be used; empty if it can."""
    if not library.is_file():
        return "there is no such file"
    with tempfile.TemporaryDirectory(prefix="punctual-clock-") as folder:
        file = Path(folder, "probe.clock")
        file.write_text("+0\n", encoding="ascii")
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROBE], env=_environment(library, file), capture_output=True,
                text=True, timeout=_PROBE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "clocks stay as they are"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")


def _environment(library: Path, file: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # File times stay those of the file system.
        "NO_FAKE_STAT": "1",
    }
