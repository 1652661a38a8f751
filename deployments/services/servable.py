"""Checks of what a person wants to deploy: a completed job or a function, whose class defines `predict`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings

from deployments.selectors.desired import WEIGHTS
from deployments.services.rollouts import Served
from projects.errors import Conflict, InvalidRequest
from punctual.bundles.predict import not_deployable
from scheduling.bundles import BundleLimits, ReadingBounds, read_bundle_apart
from scheduling.choices import JobState
from scheduling.models import Artifact, Bundle, FunctionVersion, Job


class NotDeployable(Conflict):
    """The job left no weights that can be served."""

    code = "not_deployable"
    title = "Job cannot be deployed"


def job_servable(job: Job) -> Served:
    """Return what serving a job's weights takes.

    Raises:
        NotDeployable: the job is not completed, or left no weights.
        InvalidRequest: its function does not define `predict(self, batch, model)`.
    """
    if job.state != JobState.COMPLETED:
        raise NotDeployable(f"Job {job.pk} is {job.state}; only a completed job can be deployed.")
    if not Artifact.objects.filter(job=job, name=WEIGHTS).exists():
        raise NotDeployable(f"Job {job.pk} left no {WEIGHTS}.")
    _check_predict(job.function_version, field="job")
    return Served.of_job(job)


def function_servable(version: FunctionVersion, hyperparameters: dict[str, Any]) -> Served:
    """Return what serving a function's model as `init_model` makes it takes.

    Raises:
        InvalidRequest: the function does not define `predict(self, batch, model)`.
    """
    _check_predict(version, field="function")
    return Served(version, hyperparameters)


def _check_predict(version: FunctionVersion, field: str) -> None:
    problem = _find_predict_problem(version.bundle_id, version.entry)
    if not problem:
        return
    entry = f"{version.entry} of function {version.function.name}@{version.number}"
    text = not_deployable(entry, problem)
    raise InvalidRequest(text, errors={field: [text]})


@lru_cache(maxsize=1024)
def _find_predict_problem(digest: str, entry: str) -> str:
    """Return why the class of a bundle cannot serve; empty if it can.

    The answer is kept: bundles never change, and each is read in a process of its own.
    """
    content = bytes(Bundle.objects.get(pk=digest).content)
    limits = BundleLimits(unpacked_bytes=settings.MAXIMUM_UNPACKED_BUNDLE_BYTES)
    bounds = ReadingBounds(memory_bytes=settings.BUNDLE_READING_BYTES)
    module = entry.partition(":")[0]
    return read_bundle_apart(content, f"{module}.py", entry, limits, bounds).predict_problem
