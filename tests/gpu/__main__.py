"""`python -m tests.gpu`: the tests on a GPU, with a torch that sees one. Installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
_USABLE = "import pytest, torch"
_SEES_A_GPU = "import sys, pytest, torch; sys.exit(not torch.cuda.is_available())"


def main(arguments: list[str]) -> int:
    """Run them; return pytest's exit status, or 1 without a usable torch."""
    on_the_cpu = os.environ.get("PUNCTUAL_GPU_LANE") == "cpu"
    usable = [python for python in _pythons() if _says(python, _USABLE)]
    if not usable:
        print("No Python here has torch and pytest; `make setup-dev` installs both.", file=sys.stderr)
        return 1
    chosen = next((python for python in usable if not on_the_cpu and _says(python, _SEES_A_GPU)), usable[0])
    print(f"with {chosen}", flush=True)
    command = [
        chosen, "-m", "pytest", "-c", str(FOLDER / "pytest.ini"), "--rootdir", str(ROOT),
        "--confcutdir", str(FOLDER), str(FOLDER), *arguments,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _pythons() -> list[str]:
    candidates = [str(ROOT / ".venv/bin/python"), sys.executable, shutil.which("python3") or ""]
    return list(dict.fromkeys(python for python in candidates if python and Path(python).exists()))


def _says(python: str, code: str) -> bool:
    return subprocess.run([python, "-c", code], capture_output=True, cwd="/", check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
