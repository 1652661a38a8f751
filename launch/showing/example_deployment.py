"""Deploys the example language model once it is trained.

An ordinary client of the platform, in a separate process (`python -m launch.showing.example_deployment`) that
the supervisor of `make run` starts. It records its result once per data folder, so a deleted deployment is
not made again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.credentials import DEMO_USER, Credentials
from launch.errors import LaunchError
from launch.folders import Folders, write_private
from launch.state import read_state
from punctual.client import Client
from punctual.errors import ConflictError, PunctualError

#: The job of `manage.py submit_examples`, and the deployment of its weights.
NAME = "language-model"
ASK_IT = f""".venv/bin/punctual deployments predict {NAME} '"three plus four is"'"""
_TOKEN_NAME = "deploys the example"
_READY_SECONDS = 300.0


def submitted_job(folders: Folders) -> str | None:
    """Return the id of the job to deploy; None if none was submitted, or the result is already recorded."""
    if folders.example_deployed.exists() or not folders.examples_submitted.exists():
        return None
    rows = [line.split() for line in folders.examples_submitted.read_text(encoding="utf-8").splitlines()]
    return next((row[0] for row in rows if row[1:2] == [NAME]), None)


def deploy_example(client: Client, job_id: str) -> str:
    """Wait for the job's end and deploy it. Returns one sentence on the result."""
    job = client.job(job_id).wait()
    if job.state != "completed":
        return f"The example language model is not deployed: its job {job.id} is {job.state}."
    # An earlier run may have ended before recording the deployment that it made.
    made = next(iter(client.deployments.all(job=job.id)), None)
    try:
        made = made or client.deployments.create(job.id, name=NAME)
    except ConflictError as error:
        return f"The example language model is not deployed: {error}"
    found = client.deployments.wait_until_ready(str(made["id"]), timeout_seconds=_READY_SECONDS)
    if found["state"] != "ready":
        return f"Deployment {NAME} of the example language model is {found['state']}. {found['reason']}"
    return f"The example language model answers: {ASK_IT}"


def main(job_id: str, data: str) -> None:
    """Deploy the job of this id on the platform with this data folder."""
    folders = Folders(Path(data))
    state = read_state(folders)
    if state is None:
        raise LaunchError(f"no platform runs on {data}")
    url, password = str(state["web_url"]), Credentials.load(folders.secrets).demo_password
    try:
        with Client(url, token="none") as stranger:
            token = stranger.login(DEMO_USER, password, token_name=_TOKEN_NAME)
        with Client(url, token=token) as client:
            # Tokens of runs that were stopped while they waited.
            own, *left = sorted(
                (row.id for row in client.tokens.list() if row.name == _TOKEN_NAME), reverse=True
            )
            for token_id in left:
                client.tokens.revoke(token_id)
            write_private(folders.example_deployed, deploy_example(client, job_id) + "\n")
            client.tokens.revoke(own)
    except PunctualError as error:
        raise LaunchError(str(error)) from error


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LaunchError as error:
        sys.exit(f"error: {error}")
