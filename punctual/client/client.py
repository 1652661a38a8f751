"""The client: submit functions with deadlines, try deadlines, inspect jobs and the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Unpack
from urllib.parse import quote

from punctual.client.account import Projects, Tokens, Users
from punctual.client.cluster import Cluster
from punctual.client.connection import Connection
from punctual.client.deployments import Deployments
from punctual.client.functions import Functions
from punctual.client.inference import Inference
from punctual.client.jobs import LONGEST_WAIT_SECONDS, Job
from punctual.client.models import FunctionVersion, Verdict
from punctual.client.reading import read
from punctual.client.requests import FunctionSource, JobOptions, job_body, names_stored_function
from punctual.client.simulations import Simulations


class Client(Connection):
    """A connection of one person to one platform; its arguments are those of `Connection`."""

    @cached_property
    def functions(self) -> Functions:
        """Stored functions: upload, list, versions."""
        return Functions(self.transport, self.project_name)

    @cached_property
    def cluster(self) -> Cluster:
        """Servers, GPUs and the cluster's settings."""
        return Cluster(self.transport)

    @cached_property
    def inference(self) -> Inference:
        """Inference clusters and the servers that they lend."""
        return Inference(self.transport)

    @cached_property
    def deployments(self) -> Deployments:
        """Deployments: models that answer requests."""
        return Deployments(self.transport)

    @cached_property
    def simulations(self) -> Simulations:
        """Studies: simulations of another cluster or policy."""
        return Simulations(self.transport)

    @cached_property
    def tokens(self) -> Tokens:
        """Your API tokens."""
        return Tokens(self.transport)

    @cached_property
    def projects(self) -> Projects:
        """Your projects and their members."""
        return Projects(self.transport)

    @cached_property
    def users(self) -> Users:
        """Accounts, for operators."""
        return Users(self.transport)

    # --- submitting -----------------------------------------------------------------------------------------

    def submit(
        self,
        function: FunctionSource,
        *,
        function_name: str | None = None,
        entry: str | None = None,
        requirements: str | None = None,
        verdict_seconds: float = LONGEST_WAIT_SECONDS,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and wait for its verdict.

        Args:
            function: a `.py`, a zip or a folder (uploaded first), a class or module (its source is uploaded),
                a stored version, or text such as `name@3`.
            function_name: name of an uploaded function; by default the file's. entry: `module:Class`, if the
                bundle contains several training functions. requirements: a requirements file to add to a
                single file. verdict_seconds: longest wait for the verdict, at most 30; see
                `Job.wait_for_verdict`. idempotency_key: makes the submission safe to repeat, even by another
                process; by default a new one. options: see `JobOptions`.

        Returns:
            The job. A declined one is not an error: see `job.state` and `job.offer`.

        Raises:
            BundleError, InvalidInputError: nothing was sent. ApiError: the platform refused.
        """
        body = self._body(function, function_name, entry, requirements, options)
        hold = int(min(max(verdict_seconds, 0), LONGEST_WAIT_SECONDS))
        answer = self.transport.send(
            "POST",
            "jobs/",
            body,
            params={"wait": hold} if hold else None,
            wait_seconds=hold,
            idempotency_key=idempotency_key,
        )
        return Job.from_document(self, answer)

    def what_if(
        self,
        function: FunctionSource,
        *,
        function_name: str | None = None,
        entry: str | None = None,
        requirements: str | None = None,
        link_bytes_per_second: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Verdict:
        """Return the verdict that a submission would get now, without submitting. A new function is uploaded.

        `link_bytes_per_second`: predict the function's speed with this bandwidth between servers instead of
        the real one; such a verdict promises nothing.
        """
        body = self._body(function, function_name, entry, requirements, options)
        if link_bytes_per_second is not None:
            body["link_bytes_per_second"] = link_bytes_per_second
        return read(Verdict, self.transport.send("POST", "what-if/", body))

    def _body(
        self,
        function: FunctionSource,
        function_name: str | None,
        entry: str | None,
        requirements: str | None,
        options: JobOptions,
    ) -> dict[str, Any]:
        job_body("", options)  # refuse an invalid option before anything is uploaded
        project = self.project_name(options.get("project"))
        if isinstance(function, FunctionVersion):
            reference = function.reference
        elif isinstance(function, str) and names_stored_function(function):
            reference = function
        else:
            reference = self.functions.upload(
                function, name=function_name, project=project, entry=entry, requirements=requirements
            ).reference
        return job_body(reference, options) | {"project": project}

    # --- jobs -----------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """Return one job by its id."""
        return Job.from_document(self, self.transport.get(f"jobs/{quote(job_id, safe='')}/"))

    def jobs(
        self,
        *,
        state: Sequence[str] = (),
        labels: dict[str, str] | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> Iterator[Job]:
        """Yield jobs of your projects, newest first.

        `filters` are those of the REST API: project, service_class, promised, at_risk, owner, function,
        search, submitted_after, submitted_before, deadline_before.
        """
        params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        if state:
            params["state"] = list(state)
        if labels:
            params["label"] = [f"{key}:{value}" for key, value in labels.items()]
        if limit is not None:
            params["page_size"] = min(limit, 200)
        for document in self.transport.pages("jobs/", params, limit=limit):
            yield Job.from_document(self, document)
