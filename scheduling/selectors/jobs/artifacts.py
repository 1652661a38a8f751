"""Opens the files that jobs left in the durable store."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import IO

import fsspec
import structlog
from django.conf import settings
from django.db.models import QuerySet

from projects.errors import NotFound, Unavailable
from scheduling.models import Artifact, Job

log = structlog.get_logger(__name__)

CHUNK_BYTES = 256 * 1024


def artifacts_of(job: Job) -> QuerySet[Artifact]:
    return Artifact.objects.filter(job=job)


def artifact_get(job: Job, name: str) -> Artifact:
    """Return one artifact.

    Raises:
        NotFound: the job left no artifact of that name.
    """
    artifact = Artifact.objects.filter(job=job, name=name).first()
    if artifact is None:
        raise NotFound(f"Job {job.pk} left no artifact {name}.")
    return artifact


def artifact_open(artifact: Artifact) -> tuple[IO[bytes], int]:
    """Return a stream of the artifact's bytes, and their number.

    An agent reported the address, so only addresses inside the job's own folder of the store are accepted.

    Raises:
        NotFound: the bytes are gone, or the address is outside that folder.
        Unavailable: the store does not answer.
    """
    root = settings.CHECKPOINT_URL.rstrip("/")
    key = artifact.uri.removeprefix(f"{root}/")
    folder = f"jobs/{artifact.job_id}/"
    if not key.startswith(folder) or posixpath.normpath(key) != key or "://" in key:
        log.error("artifact_outside_store", job=artifact.job_id, uri=artifact.uri)
        raise NotFound(f"The bytes of {artifact.name} are not where they should be.")
    filesystem, place = fsspec.core.url_to_fs(f"{root}/{key}")
    try:
        size = int(filesystem.size(place))
        opened: IO[bytes] = filesystem.open(place, "rb")
    except FileNotFoundError as error:
        raise NotFound(f"The bytes of {artifact.name} are gone from the store.") from error
    except OSError as error:
        log.error("store_unavailable", job=artifact.job_id, error=str(error))
        raise Unavailable("The store of artifacts does not answer; try again soon.") from error
    return opened, size


def pieces(opened: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in pieces and close it at the end."""
    with opened:
        while piece := opened.read(CHUNK_BYTES):
            yield piece
