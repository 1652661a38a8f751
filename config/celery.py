"""The Celery application and its periodic wake-ups."""

from __future__ import annotations

import os
import sys
from logging.config import dictConfig
from typing import Any

from celery import Celery, signals

from config.celery_settings import PLANNER_LOOKS_EVERY_SECONDS
from config.logging_settings import LOGGING
from workers.tasks import broker
from workers.tasks.database_connections import keep_connections
from workers.tasks.loaded_kernels import LoadedKernels
from workers.tasks.pool_watch import PoolWatch
from workers.tasks.queue_tasks import QueueTasks
from workers.tasks.shared_memory import SharedMemory

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# `make test` runs Django's checks. Running them at each start would import all pages and the whole API in
# each worker: one CPU second and 30 MB per process.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

broker.use()
keep_connections()
#: The clock only sends messages. It needs no models, whose import would take half of its memory.
IS_CLOCK = "beat" in sys.argv[1:]
app = Celery("punctual", fixups=[] if IS_CLOCK else None)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.steps["worker"].update((QueueTasks, LoadedKernels, SharedMemory, PoolWatch))


@signals.setup_logging.connect(weak=False)
def _configure_logging(**_: Any) -> None:
    # In place of Celery, whose own least level would be that of its command line.
    dictConfig(LOGGING)


def _every(seconds: float, task: str) -> dict[str, object]:
    # A message that waited a whole period is dropped, since the next one does the same work.
    return {"task": f"workers.tasks.{task}", "schedule": seconds, "options": {"expires": seconds}}


app.conf.beat_schedule = {
    "plan": _every(PLANNER_LOOKS_EVERY_SECONDS, "plan"),
    "reconcile": _every(2.0, "reconcile"),
    "expire-leases": _every(1.0, "expire_leases"),
    "sweep-outbox": _every(2.0, "sweep_outbox"),
    "refine-curves": _every(15.0, "refine_curves"),
    "measure-links": _every(10.0, "measure_links"),
    "make-gradient-plans": _every(5.0, "make_gradient_plans"),
    "housekeeping": _every(60.0, "housekeeping"),
    "sweep-long-tasks": _every(5.0, "sweep_long_tasks"),
    "delete-simulation-orphans": _every(600.0, "delete_simulation_orphans"),
    "orchestrate": _every(300.0, "orchestrate"),
    "work-off-orders": _every(2.0, "work_off_orders"),
    "steer-deployments": _every(2.0, "steer_deployments"),
    "measure-deployments": _every(5.0, "measure_deployments"),
    "start-trainings": _every(900.0, "start_trainings"),
}
