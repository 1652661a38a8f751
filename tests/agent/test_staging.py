"""The staged files are all that workers need, and bundles cannot use any of their names."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import workers.runtime
from punctual.protocol.staged import INSTALLED, STAGED, reserved_because
from tests.agent.conftest import PROJECT
from tests.plugins.forking import forking
from workers.agent.processes.runtime_staging import stage_runtime


def test_every_runtime_module_can_be_imported_from_the_staged_copy(tmp_path: Path) -> None:
    staged = stage_runtime(tmp_path)
    names = [
        name.name
        for name in pkgutil.walk_packages(workers.runtime.__path__, "workers.runtime.")
        if not name.name.endswith("__main__")
    ]
    assert names
    importing = forking().Process(target=_import, args=(staged, names))
    importing.start()
    importing.join()
    assert importing.exitcode == 0


def _import(staged: Path, names: list[str]) -> None:
    """Import these modules where only the staged files can be imported."""
    sys.path[:] = [str(staged), *(path for path in sys.path if not Path(path, "pyproject.toml").exists())]
    for name, module in list(sys.modules.items()):
        if name != "__main__" and PROJECT in Path(getattr(module, "__file__", None) or "/").parents:
            if ".venv" not in Path(module.__file__ or "/").relative_to(PROJECT).parts:
                del sys.modules[name]
    for name in names:
        assert staged in Path(import_module(name).__file__ or "/").parents


def test_a_bundle_cannot_shadow_modules_that_workers_import() -> None:
    for name in (*(path.split("/")[0] for path in STAGED), *INSTALLED, "json", "random"):
        assert reserved_because(name) is not None
    assert reserved_because("train") is None
