"""What a process of Celery loads when it starts."""

from __future__ import annotations

import subprocess
import sys

from launch.folders import PROJECT

#: As workers and the clock begin.
LOADS = """
import sys
from config.celery import app
app.loader.import_default_modules()
app.finalize()
print(*sorted(sys.modules))
print(*app.tasks)
"""


def test_it_knows_every_task_and_no_page() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    modules, tasks = (line.split() for line in loaded.stdout.splitlines()[-2:])
    assert {"workers.tasks.plan", "workers.tasks.simulate_run"} <= set(tasks)
    assert not {"config.urls", "dashboard.views", "plotly"} & set(modules)
