"""Fixtures and rules for all tests; earlier setup is in tests/plugins/embedded_servers.py."""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from django.db import connections
from django.test import override_settings
from hypothesis import HealthCheck, settings

from launch.folders import PROJECT
from tests.plugins import embedded_servers
from tests.plugins.examples import QUICK_EXAMPLES

pytest_plugins = ["tests.plugins.browser", "tests.plugins.emptying", "tests.plugins.nursery"]


# `make test` draws the same few examples in every run, so that a change does not fail for an example that the
# last one did not see. `make test-all` draws many new ones (--hypothesis-profile=thorough
# --hypothesis-seed=N). No test is about the time of an example.
_SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "quick", deadline=None, suppress_health_check=_SLOW, derandomize=True, max_examples=QUICK_EXAMPLES
)
settings.register_profile(
    "thorough", deadline=None, suppress_health_check=_SLOW, print_blob=True, max_examples=200
)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells make background processes ignore Ctrl-C; processes that a test starts to send it one would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hash passwords fast: hashing is slow on purpose and not under test. For all tests, since they share
    hashes."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _other_users_may_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let users of agents' workers reach what a test opens to them below its temporary folder."""
    folder = tmp_path_factory.getbasetemp()
    for above in (folder, *folder.parents):
        if above.parent == above or above.stat().st_mode & 0o001:
            break
        above.chmod(0o711)


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Pytest-django makes the test database with these settings."""
    connections["default"].settings_dict["TEST"]["TEMPLATE"] = embedded_servers.template


@pytest.fixture(scope="session", autouse=True)
def _static_files_when_asked_for() -> Iterator[None]:
    """Look up static files on demand: each client of a test reloads the middleware, which looks up all."""
    with override_settings(WHITENOISE_AUTOREFRESH=True):
        yield


@pytest.fixture(scope="session", autouse=True)
def _passes_take_no_time() -> Iterator[None]:
    """Under a simulated clock, do not count the time of planner passes; new promises would keep slack for the
    testing machine's time."""
    with patch("scheduling.services.snapshots.change_times.PASSES", 0):
        yield


def pytest_collection(session: pytest.Session) -> None:
    """Under pytest-xdist let each process import its share of the tests first: in a clean clone it then finds
    the rest compiled, with rewritten assertions."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        files = sorted(file for name in session.config.args for file in Path(name).rglob("test_*.py"))
        for file in files[mine::processes]:
            importlib.import_module(".".join(file.resolve().relative_to(PROJECT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Exclude the thousands of tests and their imports, which live to the end, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
