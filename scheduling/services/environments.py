"""Environments: a function's requirements, installed once as an overlay on the runtime's packages.

The installing itself is in `scheduling/environments/`; here are the rows, their lease, and the jobs that
wait.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tarfile
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import IO

import fsspec
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from scheduling.choices import TERMINAL_STATES, EnvironmentState
from scheduling.models import Environment, Job
from scheduling.services.lifecycle import fail_job
from scheduling.services.records import lock_cluster, planning_fact_changed
from scheduling.services.requirement_installer import RequirementInstaller
from scheduling.services.wakeups import wake

log = structlog.get_logger(__name__)

BUILD_LIMIT_SECONDS = 1500
LEASE = timedelta(seconds=BUILD_LIMIT_SECONDS + 60)


def build_environments() -> int:
    """Build every environment that waits, one after another. Returns how many were built or failed."""
    count = 0
    while (environment := _claim()) is not None:
        count += 1
        _build(environment)
    return count


def open_environment(digest: str) -> IO[bytes] | None:
    """The archive of a built environment, or None."""
    environment = Environment.objects.filter(pk=digest, state=EnvironmentState.READY).first()
    if environment is None:
        return None
    opened: IO[bytes] = fsspec.open(environment.uri, "rb").open()
    return opened


@transaction.atomic
def _claim() -> Environment | None:
    now = timezone.now()
    waiting = Q(state=EnvironmentState.PENDING) | Q(state=EnvironmentState.BUILDING, lease_expires_at__lt=now)
    environment = (
        Environment.objects.select_for_update(skip_locked=True).filter(waiting).order_by("created_at").first()
    )
    if environment is None:
        return None
    environment.state = EnvironmentState.BUILDING
    environment.lease_owner = f"{os.uname().nodename}:{os.getpid()}"
    environment.lease_token = secrets.token_hex(16)
    environment.lease_expires_at = now + LEASE
    environment.attempts += 1
    environment.save()
    return environment


def _build(environment: Environment) -> None:
    with tempfile.TemporaryDirectory(prefix="environment-") as folder:
        overlay = Path(folder) / "overlay"
        ok, output = _install(environment.requirements, Path(folder), overlay)
        uri, size = _store(environment.digest, Path(folder), overlay) if ok else ("", 0)
    if _finish(environment, ok=ok, output=output, uri=uri, size=size):
        log.info("environment built" if ok else "environment failed", digest=environment.digest)
        _tell_jobs(environment.digest, ok=ok, output=output)


def _install(requirements: str, folder: Path, overlay: Path) -> tuple[bool, str]:
    """Run the installer with nothing of the platform's in its environment. Returns success and its output."""
    installer = RequirementInstaller.beside_the_runtime(folder)
    try:
        return installer.install(requirements, overlay, limit_seconds=BUILD_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"The installation did not end within {BUILD_LIMIT_SECONDS} seconds."


def _store(digest: str, folder: Path, overlay: Path) -> tuple[str, int]:
    archive = folder / "overlay.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for path in sorted(overlay.iterdir()):
            # torch and numpy of the runtime are not shipped again; the overlay only adds.
            packed.add(path, arcname=path.name)
    uri = f"{settings.CHECKPOINT_URL.rstrip('/')}/environments/{digest}.tar.gz"
    filesystem, place = fsspec.core.url_to_fs(uri)
    filesystem.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
    filesystem.put_file(str(archive), place + ".part")
    filesystem.mv(place + ".part", place)
    return uri, archive.stat().st_size


def _finish(environment: Environment, *, ok: bool, output: str, uri: str, size: int) -> bool:
    """Write the result if the lease is still ours; a slower twin's result is thrown away."""
    return bool(
        Environment.objects.filter(pk=environment.pk, lease_token=environment.lease_token).update(
            state=EnvironmentState.READY if ok else EnvironmentState.FAILED,
            log=output,
            uri=uri,
            size_bytes=size,
            lease_expires_at=None,
            finished_at=timezone.now(),
        )
    )


@transaction.atomic
def _tell_jobs(digest: str, *, ok: bool, output: str) -> None:
    jobs = Job.objects.filter(function_version__requirements_digest=digest).exclude(state__in=TERMINAL_STATES)
    for job in jobs.select_related("checkpoint"):
        cluster = lock_cluster(job.cluster_id)
        if ok:
            planning_fact_changed(cluster)
            wake("plan", trigger=f"environment of {job.pk} is ready")
        else:
            fail_job(
                job,
                "environment_failed",
                "its requirements could not be installed.",
                cluster,
                traceback=output,
            )
