"""`artifacts`, `checkpoints`, `metrics`, `curve`, `plan`: a job's results and the basis of its promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from punctual.cli import options, output, session
from punctual.client import Artifact, Job
from punctual.client.durations import format_duration
from punctual.errors import NotFoundError


def artifacts(
    job_id: options.JobId,
    download: Annotated[
        Path | None, typer.Option("--download", "-o", metavar="DIR", help="Download into this folder.")
    ] = None,
    names: Annotated[list[str] | None, typer.Option("--name", help="Only this file (repeatable).")] = None,
    as_json: options.Json = False,
) -> None:
    """List the files that a completed job left, or download them."""
    with session.client() as client:
        job = client.job(job_id)
        found = job.artifacts()
        if missing := set(names or ()) - {artifact.name for artifact in found}:
            raise NotFoundError(f"the job has no artifact {', '.join(sorted(missing))}", status=404)
        chosen = [artifact for artifact in found if not names or artifact.name in names]
        if download is not None:
            paths = [_download(job, artifact, download) for artifact in chosen]
            if as_json:
                output.print_json(
                    [artifact.raw | {"path": str(path)} for artifact, path in zip(chosen, paths, strict=True)]
                )
            else:
                for path in paths:
                    output.say(str(path))
            if chosen:
                return
    if as_json:
        output.print_json([artifact.raw for artifact in chosen])
        return
    output.print_table(
        ("NAME", "SIZE", "SHA-256", "STORED"),
        [(item.name, output.size_text(item.size_bytes), item.sha256, item.stored_at) for item in chosen],
        right=("SIZE",),
        empty=f"No artifacts: a job leaves them when it completes (this one is {job.state}).",
    )


def _download(job: Job, artifact: Artifact, folder: Path) -> Path:
    console = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(output.safe(artifact.name), total=artifact.size_bytes)
        return job.download(
            artifact, folder, on_progress=lambda done, _total: progress.update(task, completed=done)
        )


def checkpoints(job_id: options.JobId, as_json: options.Json = False) -> None:
    """List the durable states that a job has written."""
    with session.client() as client:
        found = client.job(job_id).checkpoints()
    if as_json:
        output.print_json([checkpoint.raw for checkpoint in found])
        return
    output.print_table(
        ("ITERATION", "GENERATION", "REASON", "SIZE", "TOOK", "STORED"),
        [
            (c.iteration, c.generation, c.reason, output.size_text(c.size_bytes),
            format_duration(c.store_seconds), c.stored_at)
            for c in found
        ],
        right=("ITERATION", "GENERATION", "SIZE"),
        empty="No checkpoint yet.",
    )  # fmt: skip


def metrics(
    job_id: options.JobId,
    after: Annotated[int | None, typer.Option("--after", help="Only after this iteration.", min=0)] = None,
    as_json: options.Json = False,
) -> None:
    """Print what the function reported, by iteration."""
    with session.client() as client:
        found = client.job(job_id).metrics(after_iteration=after)
    if as_json:
        output.print_json([metric.raw for metric in found])
        return
    names = sorted({name for metric in found for name in metric.values})
    output.print_table(
        ("ITERATION", "GPUS", "IT/S", *names),
        [
            (m.iteration, m.gpus, f"{m.iterations_per_second or 0:.2f}",
            *(_number(m.values.get(name)) for name in names))
            for m in found
        ],
        right=("ITERATION", "GPUS", "IT/S", *names),
        empty="Nothing reported yet.",
    )  # fmt: skip


def curve(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Show the measured scaling curve that the promise rests on."""
    with session.client() as client:
        document = client.job(job_id).curve()
    if as_json:
        output.print_json(document)
        return
    levels = sorted(document.get("levels") or [], key=lambda level: level.get("gpus", 0))
    if gpu_kind := document.get("gpu_kind"):
        state = document.get("state", "")
        output.say(f"Measured on {gpu_kind}{f' ({state})' if state else ''}")
    output.print_table(
        ("GPUS", "IT/S", "SPEED-UP", "EFFICIENCY", "MEMORY", ""),
        _curve_rows(levels),
        right=("GPUS", "IT/S", "SPEED-UP", "EFFICIENCY", "MEMORY"),
        empty="Nothing measured yet.",
    )


def _curve_rows(levels: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows with speed-up and efficiency against the smallest measured level, host memory reserved for
    a worker, and a bar of the throughput."""
    if not levels:
        return []
    base_gpus, base_rate = levels[0]["gpus"], levels[0]["iterations_per_second"]
    highest = max(level["iterations_per_second"] for level in levels)
    rows = []
    for level in levels:
        speed_up = level["iterations_per_second"] / base_rate
        rows.append(
            (
                level["gpus"],
                f"{level['iterations_per_second']:.2f}",
                f"{speed_up:.2f}x",
                f"{100 * speed_up * base_gpus / level['gpus']:.0f}%",
                output.size_text(reserved) if (reserved := level.get("reserved_memory_bytes")) else "-",
                "█" * max(1, round(24 * level["iterations_per_second"] / highest)),
            )
        )
    return rows


def plan(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Show a job's GPUs over time, planned and actual."""
    with session.client() as client:
        document = client.job(job_id).plan()
    if as_json:
        output.print_json(document)
        return
    for title, key in (("Had", "actual"), ("Planned", "planned")):
        pieces = document.get(key) or []
        output.print_table(
            (title.upper(), "UNTIL", "GPUS"),
            [(_time(piece.get("start")), _time(piece.get("end")), piece.get("gpus")) for piece in pieces],
            right=("GPUS",),
            empty=f"{title}: nothing.",
        )


def _time(text: str | None) -> str:
    return output.time_text(text) if text else "now"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
