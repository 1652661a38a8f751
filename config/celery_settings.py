"""Celery settings. Messages are wake-ups only: every task derives its work from PostgreSQL, so a lost message
costs a tick.

Separate queues keep long tasks from delaying a verdict: `planner` (one process), `control` (dispatch,
reconcile, leases, outbox, curves, loans), `long` (environments), `gradients` (gradient plans, which take
minutes), `forecasting` (of inference usage) and `simulations` (operators' studies).
"""

from __future__ import annotations

import os
import sys
from typing import Any


def broker_url(redis_url: str) -> str:
    """Return the URL in Celery's format, which differs from redis-py's for Unix sockets."""
    if redis_url.startswith("unix://"):
        path, _, query = redis_url.removeprefix("unix://").partition("?")
        database = query.removeprefix("db=") if query.startswith("db=") else "0"
        return f"redis+socket://{path}?virtual_host={database}"
    return redis_url


CELERY_BROKER_URL = broker_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SOFT_TIME_LIMIT = 50
CELERY_TASK_TIME_LIMIT = 60
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
#: The same value wherever Celery reads it (the shortest wins), far above any task's time limit.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {
    "visibility_timeout": 3600,
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
}
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_DEFAULT_QUEUE = "control"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_MAX_TASKS_PER_CHILD = 20_000
#: Number of tasks after which Celery itself closes a database connection
#: (workers/tasks/database_connections.py).
CELERY_DB_REUSE_MAX = sys.maxsize
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "workers.tasks.clock:Clock"

#: Time limit of one simulated run, in seconds. It leaves room below the visibility timeout for comparing the
#: run.
SIMULATION_RUN_SECONDS = int(os.environ.get("SIMULATION_RUN_SECONDS", "3000"))

#: Interval at which the planner runs even if nothing wakes it.
PLANNER_LOOKS_EVERY_SECONDS = 1.0

CELERY_TASK_ROUTES = {
    "workers.tasks.plan": {"queue": "planner"},
    "workers.tasks.build_environment": {"queue": "long"},
    "workers.tasks.make_gradient_plans": {"queue": "gradients"},
    "workers.tasks.forecast_usage": {"queue": "forecasting"},
    "workers.tasks.train_forecaster": {"queue": "forecasting"},
    "workers.tasks.simulate_run": {"queue": "simulations"},
    "workers.tasks.compare_runs": {"queue": "simulations"},
}
