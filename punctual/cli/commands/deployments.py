"""`deploy` and `deployments`: models that answer requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.cli.commands.deployment_load import load
from punctual.cli.inputs import read_inputs
from punctual.client.deployments import Deployments
from punctual.client.durations import parse_duration
from punctual.client.sizes import parse_size
from punctual.errors import InvalidInputError

deployments_app = typer.Typer(help="List deployments, ask them, change and delete them.")
deployments_app.command("load")(load)
DeploymentId = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id or name.")]
Servers = Annotated[
    int | None, typer.Option("--servers", min=1, help="Number of servers at first; both bounds unless given.")
]
Least = Annotated[int | None, typer.Option("--min", min=1, help="Minimum number of servers.")]
Most = Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of servers.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--latency-target", metavar="DURATION", help="Target for the 95th percentile, such as 200ms."
    ),
]
MaxBatch = Annotated[
    int | None, typer.Option("--max-batch", min=1, help="Maximum number of inputs of one call of predict.")
]
MaxWait = Annotated[
    str | None,
    typer.Option(
        "--max-wait", metavar="DURATION", help="Longest wait of a batch's first input, such as 5ms."
    ),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        "--device-memory",
        metavar="SIZE",
        help="Memory for weights on each server, such as 20GB; other layers stream from host memory.",
    ),
]


def deploy(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="A completed job.")] = None,
    servers: Servers = None,
    least: Least = None,
    most: Most = None,
    latency_target: Target = None,
    max_batch: MaxBatch = None,
    max_wait: MaxWait = None,
    device_memory: DeviceMemory = None,
    name: Annotated[
        str | None, typer.Option("--name", help="By default the name of the job or function.")
    ] = None,
    function: Annotated[
        str | None, typer.Option("--function", metavar="NAME", help="A stored function in place of a job.")
    ] = None,
    hyperparameters: options.Set = None,
    project: options.Project = None,
    experts: Annotated[
        str | None,
        typer.Option("--experts", help="spread: the servers compute the experts of a mixture together."),
    ] = None,
    inference_cluster: Annotated[
        str | None,
        typer.Option("--inference-cluster", help="The inference cluster; required if there are several."),
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="Wait until it is ready.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Serve the weights of a completed job over HTTP."""
    if (job is None) == (function is None):
        raise InvalidInputError("name either a job or --function", hint="punctual deploy JOB --servers 1")
    settings = _settings(latency_target, max_batch, max_wait, device_memory) | _given(
        servers=_bounds(servers, least, most), name=name, function=function, project=project,
        hyperparameters=options.hyperparameters_of(hyperparameters), inference_cluster=inference_cluster,
        experts=experts,
    )  # fmt: skip
    seconds = None if wait is None else parse_duration(wait).total_seconds()
    with session.client() as client:
        made = client.deployments.create(job, **settings)
        if seconds is not None:
            made = client.deployments.wait_until_ready(str(made["id"]), timeout_seconds=seconds)
    if as_json:
        output.print_json(made)
        return
    _say_standing(made)
    output.say(f"Ask it: punctual deployments predict {made['id']} INPUT")


def _bounds(servers: int | None, least: int | None, most: int | None) -> dict[str, int] | None:
    """Return the member `servers` of a new deployment: a missing bound is the number of servers."""
    found = _given(
        min=servers if least is None else least, max=servers if most is None else most, wanted=servers
    )
    return found or None


def _settings(
    latency_target: str | None, max_batch: int | None, max_wait: str | None, device_memory: str | None
) -> dict[str, Any]:
    return _given(
        latency_target_seconds=_seconds(latency_target),
        max_batch=max_batch,
        max_wait_seconds=_seconds(max_wait),
        device_memory_bytes=None if device_memory is None else parse_size(device_memory),
    )


def _seconds(text: str | None) -> float | None:
    """Read a duration that may have milliseconds, such as `200ms`."""
    if text is None:
        return None
    number = text.removesuffix("ms")
    if number == text:
        return parse_duration(text).total_seconds()
    try:
        milliseconds = float(number)
    except ValueError as error:
        raise InvalidInputError(f"“{text[:40]}” is not a duration", hint="such as 200ms or 0.2s") from error
    return milliseconds / 1000.0


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, {})}


def _standing(deployment: dict[str, Any]) -> str:
    serving = _count_serving(deployment)
    reason = f" {deployment['reason']}" if deployment["reason"] else ""
    return f"{deployment['state']}, {serving} of {deployment['servers']['wanted']} servers serve.{reason}"


def _count_serving(deployment: dict[str, Any]) -> int:
    return sum(replica["state"] == "serving" for replica in deployment["replicas"])


def _say_standing(deployment: dict[str, Any], as_json: bool = False) -> None:
    if as_json:
        output.print_json(deployment)
    else:
        output.say(f"Deployment {deployment['id']}: {_standing(deployment)}")


@deployments_app.callback(invoke_without_command=True)
def deployments(
    context: typer.Context, project: options.Project = None, as_json: options.Json = False
) -> None:
    """List deployments."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = list(client.deployments.all(project=project))
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "NAME", "PROJECT", "SERVES", "STATE", "SERVING", "WANTED", "BOUNDS"),
        [
            (
                row["id"],
                row["name"],
                row["project"],
                row["generations"][-1]["job"] or row["generations"][-1]["function"],
                output.state_text(row["state"]),
                _count_serving(row),
                row["servers"]["wanted"],
                f"{row['servers']['min']}-{row['servers']['max']}",
            )
            for row in found
        ],
        right=("SERVING", "WANTED"),
        empty="No deployment yet: punctual deploy JOB --servers 1",
    )


@contextmanager
def _found(id_or_name: str) -> Iterator[tuple[Deployments, str]]:
    """Yield the API of deployments, and the id of the given one."""
    with session.client() as client:
        yield client.deployments, client.deployments.find(id_or_name)


@deployments_app.command("show")
def show(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """Show a deployment: state, servers, requests of the last minutes."""
    with _found(deployment_id) as (api, found_id):
        found = api.get(found_id)
        samples = api.samples(found_id, limit=1)
    if as_json:
        output.print_json({**found, "newest_sample": samples[0] if samples else None})
        return
    output.print_facts([*_facts(found), *(_load_facts(samples[0]) if samples else ())])
    output.print_table(
        ("SERVER", "GPU", "GENERATION", "STATE", "ADDRESS", "LAYERS"),
        [
            (
                row["server"],
                row["gpu"],
                row["generation"],
                output.state_text(row["state"]),
                row["address"],
                _layers(row["ring"]),
            )
            for row in found["replicas"]
        ],
        right=("GPU", "GENERATION"),
        empty="No server yet.",
    )


def _facts(deployment: dict[str, Any]) -> list[tuple[str, str]]:
    servers, target = deployment["servers"], deployment["latency_target_seconds"]
    newest = deployment["generations"][-1]
    return [
        ("state", _standing(deployment)),
        ("generation", f"{newest['number']}: {newest['job'] or newest['function']}, {newest['state']}"),
        (
            "servers",
            f"{servers['wanted']} wanted ({servers['reason']}), {servers['min']} to {servers['max']}",
        ),
        ("latency target", "-" if target is None else f"{_ms(target)} at the 95th percentile"),
    ]


def _layers(ring: dict[str, Any] | None) -> str:
    """Say which layers of a replica stream."""
    if ring is None:
        return ""
    waits = "" if ring["stall_seconds"] is None else f", a call waits {_ms(ring['stall_seconds'])}"
    return f"{ring['resident']} stay, {ring['streamed']} stream{waits}"


def _load_facts(sample: dict[str, Any]) -> list[tuple[str, str]]:
    latency = ", ".join(f"{name} {_ms(value)}" for name, value in sample["latency_seconds"].items())
    home, lent = sample["servers_home"], sample["servers_lent"]
    return [
        ("requests", f"{sample['requests']} in the newest period, {sample['failed']} failed"),
        ("latency", latency),
        ("busy", f"{sample['busy_servers']:.2f} servers"),
        ("inference servers", f"{home} at home, {lent} lent"),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"


@deployments_app.command("predict")
def predict(
    deployment_id: DeploymentId,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT...", help="Inputs, each as JSON.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A JSON list of inputs; - for standard input.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Send inputs to the model. Prints one line of JSON for each input."""
    inputs = read_inputs(values or [], file)
    with _found(deployment_id) as (api, found_id):
        outputs = api.predict(found_id, inputs)
    if as_json:
        output.print_json(outputs)
        return
    for value in outputs:
        output.say(json.dumps(value))


@deployments_app.command("set")
def change(
    deployment_id: DeploymentId,
    servers: Servers = None,
    least: Least = None,
    most: Most = None,
    latency_target: Target = None,
    max_batch: MaxBatch = None,
    max_wait: MaxWait = None,
    device_memory: DeviceMemory = None,
    job: Annotated[str | None, typer.Option("--job", help="A job whose weights take over.")] = None,
    as_json: options.Json = False,
) -> None:
    """Change bounds, target, batches, memory or the job, which takes over one server at a time."""
    changes = _settings(latency_target, max_batch, max_wait, device_memory) | _given(
        servers=_given(min=least, max=most, wanted=servers), job=job
    )
    if not changes:
        raise InvalidInputError("name at least one change", hint="punctual deployments set --help")
    with _found(deployment_id) as (api, found_id):
        _say_standing(api.change(found_id, **changes), as_json)


@deployments_app.command("rollback")
def rollback(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """Serve again what the previous generation served."""
    with _found(deployment_id) as (api, found_id):
        _say_standing(api.rollback(found_id), as_json)


@deployments_app.command("drain")
def drain(
    deployment_id: DeploymentId,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A server with a replica of it.")],
    as_json: options.Json = False,
) -> None:
    """Drain one server after another one has taken its place."""
    with _found(deployment_id) as (api, found_id):
        _say_standing(api.drain(found_id, server), as_json)


@deployments_app.command("delete")
def delete(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """Drain all servers and end the deployment."""
    with _found(deployment_id) as (api, found_id):
        _say_standing(api.delete(found_id), as_json)


@deployments_app.command("events")
def events(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """Show a deployment's history, newest first."""
    with _found(deployment_id) as (api, found_id):
        found = api.events(found_id)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("AT", "WHAT"),
        [(output.time_text(row["happened_at"]), row["message"]) for row in found],
        empty="Nothing yet.",
    )


@deployments_app.command("logs")
def logs(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """Show the end of the logs of a deployment's newest replicas."""
    with _found(deployment_id) as (api, found_id):
        found = api.logs(found_id)
    if as_json:
        output.print_json(found)
        return
    for row in reversed(found):
        output.say(f"--- {row['key']} on {row['server']} ({row['state']}) {row['reason']}".rstrip())
        output.say(row["text"].rstrip("\n"))


@deployments_app.command("token")
def token(
    deployment_id: DeploymentId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the token is for.")],
    as_json: options.Json = False,
) -> None:
    """Print a new token that opens the deployment's servers, and nothing else."""
    with _found(deployment_id) as (api, found_id):
        issued = api.issue_token(found_id, name)
    if as_json:
        output.print_json(issued)
    else:
        output.say(str(issued["token"]))
        output.note("Keep it now: it is not shown again.")


@deployments_app.command("tokens")
def tokens(deployment_id: DeploymentId, as_json: options.Json = False) -> None:
    """List a deployment's tokens."""
    with _found(deployment_id) as (api, found_id):
        found = api.tokens(found_id)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "NAME", "MADE", "REVOKED"),
        [
            (
                row["id"],
                row["name"],
                output.time_text(row["created_at"]),
                output.time_text(row["revoked_at"]),
            )
            for row in found
        ],
        right=("ID",),
        empty="No token yet: punctual deployments token DEPLOYMENT NAME",
    )


@deployments_app.command("revoke")
def revoke(
    deployment_id: DeploymentId,
    token_id: Annotated[int, typer.Argument(metavar="TOKEN_ID", help="See: punctual deployments tokens.")],
    as_json: options.Json = False,
) -> None:
    """Revoke a token."""
    with _found(deployment_id) as (api, found_id):
        api.revoke_token(found_id, token_id)
    if as_json:
        output.print_json({"id": token_id, "revoked": True})
    else:
        output.say(f"Token {token_id} is revoked.")
