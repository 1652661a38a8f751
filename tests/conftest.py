"""Fixtures and rules for all tests; what must come earlier is in tests/plugins/embedded_servers.py."""

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


# `make test` draws the same few examples in every run: a change is not refused for an example that the last
# one was spared. `make test-all` draws many new ones (--hypothesis-profile=thorough --hypothesis-seed=N).
# No test is about how long an example takes.
_SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "quick", deadline=None, suppress_health_check=_SLOW, derandomize=True, max_examples=QUICK_EXAMPLES
)
settings.register_profile(
    "thorough", deadline=None, suppress_health_check=_SLOW, print_blob=True, max_examples=200
)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells let what they start in the background ignore Ctrl-C, and so would every process that a test
    # starts to press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hashing passwords is slow on purpose, and no test is about that. For all tests alike: hashes are
    shared."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _other_users_may_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let users that agents start workers as reach what a test opens to them below its temporary folder."""
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
    """Each client of a test loads the middleware anew, which would look up all static files each time."""
    with override_settings(WHITENOISE_AUTOREFRESH=True):
        yield


@pytest.fixture(scope="session", autouse=True)
def _passes_take_no_time() -> Iterator[None]:
    """Where time stands still or is turned, passes of the planner take none of it; new promises would keep
    slack for how long the machine that tests took over them."""
    with patch("scheduling.services.snapshots.change_times.PASSES", 0):
        yield


def pytest_collection(session: pytest.Session) -> None:
    """Under pytest-xdist each process imports its share of the tests first: in a clean clone it finds the
    rest already compiled, with rewritten assertions."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        mine = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        files = sorted(file for name in session.config.args for file in Path(name).rglob("test_*.py"))
        for file in files[mine::processes]:
            importlib.import_module(".".join(file.resolve().relative_to(PROJECT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: nothing is gained by looking through them
    for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
