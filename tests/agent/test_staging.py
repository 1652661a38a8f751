"""What is staged on a node is all that its workers need, and every name of it is kept from bundles."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import workers.runtime
from punctual.protocol.staged import INSTALLED, STAGED, reserved_because
from workers.agent.runtime_staging import stage_runtime


def test_every_module_of_the_runtime_can_be_imported_from_what_is_staged(tmp_path: Path) -> None:
    staged = stage_runtime(tmp_path)
    names = [
        name.name
        for name in pkgutil.walk_packages(workers.runtime.__path__, "workers.runtime.")
        if not name.name.endswith("__main__")
    ]
    assert names
    code = f"import sys; sys.path.insert(0, {str(staged)!r}); import {', '.join(names)}"
    done = subprocess.run(
        [sys.executable, "-s", "-P", "-c", code],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_bundle_may_hide_nothing_that_workers_import() -> None:
    for name in (*(path.split("/")[0] for path in STAGED), *INSTALLED, "json", "random"):
        assert reserved_because(name) is not None
    assert reserved_because("train") is None
