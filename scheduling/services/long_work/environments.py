"""Environments: a function's requirements, installed once as an overlay on the runtime's packages.

`requirement_installer.py` installs them. This module handles the rows, their lease, and waiting jobs.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import IO

import fsspec
import structlog
from django.conf import settings
from django.db import transaction

from cluster.choices import WorkState
from scheduling.choices import TERMINAL_STATES
from scheduling.core.question.quantities import duration_text
from scheduling.life_cycle.instructions import Fail
from scheduling.models import Environment, Job
from scheduling.selectors.jobs.environments import build_order
from scheduling.services.generations.lifecycle import fail_all
from scheduling.services.long_work.long_tasks import LongTask, TaskAttempt, TookTooLong
from scheduling.services.long_work.requirement_installer import RequirementInstaller
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake

log = structlog.get_logger(__name__)

BUILD_LIMIT_SECONDS = 1500
NOT_INSTALLED = "its requirements could not be installed."


def build_next_environment() -> bool:
    """Build the next queued environment. Return whether one was built and can be used now."""
    return BUILDS.work_off_first(
        build_order(), _build, explain=lambda error: None, longest_seconds=BUILD_LIMIT_SECONDS
    )


def open_environment(digest: str) -> IO[bytes] | None:
    """Return the archive of a built environment, or None."""
    environment = Environment.objects.filter(pk=digest, state=WorkState.DONE).first()
    if environment is None:
        return None
    opened: IO[bytes] = fsspec.open(environment.uri, "rb").open()
    return opened


def _build(attempt: TaskAttempt[Environment]) -> bool:
    environment = attempt.row
    with tempfile.TemporaryDirectory(prefix="environment-") as folder:
        overlay = Path(folder) / "overlay"
        installer = RequirementInstaller(Path(folder), lambda output: attempt.told(log=output))
        try:
            ok, output = installer.install(environment.requirements, overlay)
            attempt.told()
        except TookTooLong:
            too_long = f"The installation did not end within {duration_text(BUILD_LIMIT_SECONDS)}.\n"
            ok, output = False, installer.output() + too_long
        if ok:
            uri, size = _store(attempt, Path(folder), overlay)
            counts = attempt.finish(log=output, uri=uri, size_bytes=size)
        else:
            counts = attempt.fail(NOT_INSTALLED, log=output)
    # The result of a worker that lost its lease is discarded.
    if counts:
        log.info("environment built" if ok else "environment failed", digest=environment.digest)
        _tell_jobs(environment.digest, None if ok else Fail("environment_failed", NOT_INSTALLED, output))
    return ok and counts


def _store(attempt: TaskAttempt[Environment], folder: Path, overlay: Path) -> tuple[str, int]:
    digest = attempt.row.digest
    archive = folder / "overlay.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for path in sorted(overlay.iterdir()):
            # The overlay only adds packages; the runtime's torch and numpy are not included.
            packed.add(path, arcname=path.name)
    uri = f"{settings.CHECKPOINT_URL.rstrip('/')}/environments/{digest}.tar.gz"
    filesystem, place = fsspec.core.url_to_fs(uri)
    filesystem.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
    # A worker that lost its lease may still be storing: two workers must not write one file.
    part = f"{place}.{attempt.token}.part"
    filesystem.put_file(str(archive), part)
    filesystem.mv(part, place)
    return uri, archive.stat().st_size


def failure_of(environment: Environment) -> Fail:
    """Return how jobs end that wait for a failed or cancelled environment."""
    if environment.state == WorkState.CANCELLED:
        return Fail("environment_failed", environment.error)
    causes = [text for text in (environment.log, environment.error) if text and text != NOT_INSTALLED]
    return Fail("environment_failed", NOT_INSTALLED, "\n".join(causes))


def fail_waiting_jobs(environment: Environment) -> None:
    """End the jobs that wait for a failed or cancelled environment."""
    _tell_jobs(environment.digest, failure_of(environment))


@transaction.atomic
def _tell_jobs(digest: str, failure: Fail | None) -> None:
    """Let waiting jobs be measured, or end them with ``failure``."""
    jobs = Job.objects.filter(function_version__requirements_digest=digest).exclude(state__in=TERMINAL_STATES)
    for cluster_id in sorted(set(jobs.values_list("cluster", flat=True))):
        cluster = lock_cluster(cluster_id)
        if failure is None:
            planning_fact_changed(cluster)
            wake("plan", trigger=f"environment {digest[:8]} is ready")
        else:
            found = jobs.filter(cluster=cluster_id).select_related("checkpoint")
            fail_all([(job, failure) for job in found.order_by("pk")], cluster)


BUILDS = LongTask(
    rows=Environment, topic="build_environment", argument="digest", progress={"log": ""},
    given_up=fail_waiting_jobs, lost="Its worker process was lost {attempts} times while it installed them.",
)  # fmt: skip
