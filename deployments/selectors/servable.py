"""Deployable jobs: completed jobs with weights, whose class defines `predict`."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings

from deployments.selectors.desired import WEIGHTS
from lending.models import InferenceCluster
from projects.errors import DomainError
from scheduling.bundles import BundleLimits, ReadingBounds, read_bundle_apart
from scheduling.choices import JobState
from scheduling.models import Artifact, Bundle, FunctionVersion, Job

#: Answers kept by each process. Reading a bundle starts a process, and a page asks every few seconds.
_KEPT_ANSWERS = 1024


def inference_cluster_names() -> list[str]:
    """Return the names of the inference clusters that a job can be deployed to."""
    return list(InferenceCluster.objects.order_by("name").values_list("name", flat=True))


def has_weights(job: Job) -> bool:
    """Return whether the job left weights."""
    return Artifact.objects.filter(job=job, name=WEIGHTS).exists()


def predict_problem(version: FunctionVersion) -> str:
    """Return why a function's class cannot be deployed; empty: it can.

    Raises:
        BundleError: reading the source takes too much. Unavailable: too many bundles are read at once.
    """
    return _problem_of(version.bundle_id, version.entry)


def is_deployable(job: Job) -> bool:
    """Return whether the job's weights can be served; False also if that cannot be found out now."""
    if job.state != JobState.COMPLETED or not has_weights(job):
        return False
    try:
        return not predict_problem(job.function_version)
    except DomainError:
        return False


@lru_cache(maxsize=_KEPT_ANSWERS)
def _problem_of(digest: str, entry: str) -> str:
    """Return `predict_problem` of a bundle; cached, as bundles are stored by the digest of their content."""
    content = bytes(Bundle.objects.get(pk=digest).content)
    limits = BundleLimits(unpacked_bytes=settings.MAXIMUM_UNPACKED_BUNDLE_BYTES)
    bounds = ReadingBounds(memory_bytes=settings.BUNDLE_READING_BYTES)
    module = entry.partition(":")[0]
    return read_bundle_apart(content, f"{module}.py", entry, limits, bounds).predict_problem
