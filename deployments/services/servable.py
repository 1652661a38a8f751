"""Checks that a completed job or a function can be deployed: its class must define `predict`."""

from __future__ import annotations

from typing import Any

from deployments.selectors.desired import WEIGHTS
from deployments.selectors.servable import has_weights, predict_problem
from deployments.services.rollouts import Served
from projects.errors import Conflict, InvalidRequest
from punctual.bundles.predict import not_deployable
from scheduling.choices import JobState
from scheduling.models import FunctionVersion, Job


class NotDeployable(Conflict):
    """The job left no weights that can be served."""

    code = "not_deployable"
    title = "Job cannot be deployed"


def job_servable(job: Job) -> Served:
    """Return the content for serving a job's weights.

    Raises:
        NotDeployable: the job is not completed, or left no weights.
        InvalidRequest: its function does not define `predict(self, batch, model)`.
    """
    if job.state != JobState.COMPLETED:
        raise NotDeployable(f"Job {job.pk} is {job.state}; only a completed job can be deployed.")
    if not has_weights(job):
        raise NotDeployable(f"Job {job.pk} left no {WEIGHTS}.")
    _check_predict(job.function_version, field="job")
    return Served.of_job(job)


def function_servable(version: FunctionVersion, hyperparameters: dict[str, Any]) -> Served:
    """Return the content for serving a function's model with `init_model`'s weights.

    Raises:
        InvalidRequest: the function does not define `predict(self, batch, model)`.
    """
    _check_predict(version, field="function")
    return Served(version, hyperparameters)


def _check_predict(version: FunctionVersion, field: str) -> None:
    problem = predict_problem(version)
    if not problem:
        return
    entry = f"{version.entry} of function {version.function.name}@{version.number}"
    text = not_deployable(entry, problem)
    raise InvalidRequest(text, errors={field: [text]})
