"""Environments: a function's requirements, installed once as an overlay on the runtime's packages.

The installing itself is in `requirement_installer.py`; here are the rows, their lease, and the jobs that
wait.
"""

from __future__ import annotations

import subprocess
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
from scheduling.life_cycle.instructions import Fail
from scheduling.models import Environment, Job
from scheduling.services.lifecycle import fail_all
from scheduling.services.long_tasks import Attempt, LongTask
from scheduling.services.records import lock_cluster, planning_fact_changed
from scheduling.services.requirement_installer import RequirementInstaller
from scheduling.services.wakeups import wake

log = structlog.get_logger(__name__)

BUILD_LIMIT_SECONDS = 1500
NOT_INSTALLED = "its requirements could not be installed."


def build_environment(digest: str) -> bool:
    """Build it, if it is queued and nobody else takes it. Returns whether it can be used now."""
    return BUILDS.work_off(digest, _build, explain=lambda error: None)


def open_environment(digest: str) -> IO[bytes] | None:
    """The archive of a built environment, or None."""
    environment = Environment.objects.filter(pk=digest, state=WorkState.DONE).first()
    if environment is None:
        return None
    opened: IO[bytes] = fsspec.open(environment.uri, "rb").open()
    return opened


def _build(attempt: Attempt[Environment]) -> bool:
    environment = attempt.row
    with tempfile.TemporaryDirectory(prefix="environment-") as folder:
        overlay = Path(folder) / "overlay"
        ok, output = _install(environment.requirements, Path(folder), overlay)
        attempt.told()
        if ok:
            uri, size = _store(environment.digest, Path(folder), overlay)
            counts = attempt.finish(log=output, uri=uri, size_bytes=size)
        else:
            counts = attempt.fail(NOT_INSTALLED, log=output)
    # A slower twin's result is thrown away.
    if counts:
        log.info("environment built" if ok else "environment failed", digest=environment.digest)
        _tell_jobs(environment.digest, ok=ok, output=output)
    return ok and counts


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


@transaction.atomic
def _tell_jobs(digest: str, *, ok: bool, output: str) -> None:
    jobs = Job.objects.filter(function_version__requirements_digest=digest).exclude(state__in=TERMINAL_STATES)
    for cluster_id in sorted(set(jobs.values_list("cluster", flat=True))):
        cluster = lock_cluster(cluster_id)
        if ok:
            planning_fact_changed(cluster)
            wake("plan", trigger=f"environment {digest[:8]} is ready")
        else:
            fault = Fail("environment_failed", NOT_INSTALLED, output)
            found = jobs.filter(cluster=cluster_id).select_related("checkpoint")
            fail_all([(job, fault) for job in found.order_by("pk")], cluster)


def _given_up(environment: Environment) -> None:
    _tell_jobs(environment.digest, ok=False, output=environment.error)


BUILDS = LongTask(
    rows=Environment, topic="build_environment", argument="digest", given_up=_given_up,
    lost="Its worker process was lost {attempts} times while it installed them.",
)  # fmt: skip
