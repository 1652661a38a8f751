"""Tasks of the queue `long`: builds of environments."""

from __future__ import annotations

from celery import shared_task

from scheduling.services.long_work import environments
from workers.tasks.common import RETRY


@shared_task(name="workers.tasks.build_environment", time_limit=3600, soft_time_limit=3500, **RETRY)
def build_environment(digest: str) -> None:
    """Install the requirements that are next, whichever row (``digest``) the message was sent for."""
    environments.build_next_environment()
