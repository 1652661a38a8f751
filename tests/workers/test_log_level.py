"""Celery's processes log what `LOG_LEVEL` says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launch.folders import PROJECT

#: Does as a worker or the clock at its start, whose command line names no level.
STARTING = """
import logging, sys
sys.argv[1:] = [{role!r}]
from config.celery import app
app.loader.import_default_modules()
app.log.setup(loglevel="WARNING")
logging.getLogger("workers.tasks").info("a server stands by")
"""


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_celery_keeps_the_level_of_the_platform(role: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTING.format(role=role)],
        cwd=PROJECT, env={**os.environ, "LOG_LEVEL": "INFO"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"a server stands by"' in done.stderr
