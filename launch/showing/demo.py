"""The mixed workload of `make demo`: tight and loose deadlines, soft deadlines and best effort, for some
minutes.

Each example function is measured first (its first job is profiled). Deadlines and lengths are derived from
these measurements, so the mix is as tight on a slow machine as on a fast one. If the platform can borrow
servers, the mix has more work without a deadline, and the demo ends with a report on lending.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from launch.credentials import DEMO_USER, OPERATOR_USER, Credentials
from launch.errors import LaunchError
from launch.folders import PROJECT, Folders
from launch.settings import PlatformSettings
from launch.showing.demo_lending import HOW_TO_BORROW, read_report
from launch.state import read_state
from punctual.client import Client, Job
from punctual.client.requests import JobOptions
from punctual.errors import PunctualError

#: Example function -> its global batch size and hyperparameters. The mixture of experts is small enough for
#: several workers to share a core.
FUNCTIONS: dict[str, JobOptions] = {
    "image_classifier": {"batch_size": 64},
    "character_model": {"batch_size": 32},
    "recommender": {"batch_size": 128},
    "moe_language_model": {
        "batch_size": 32,
        "hyperparameters": {"width": 64, "hidden": 128, "experts": 4},
    },
}
_PROFILING_SECONDS = 400.0
_MEAN_SECONDS_BETWEEN_JOBS = 9.0


@dataclass(frozen=True)
class Kind:
    """One kind of job in the mix."""

    name: str
    #: Class of the jobs of this kind.
    service_class: str
    #: Relative frequency in the mix.
    share: float
    #: Training time on one GPU (least, most).
    single_gpu_seconds: tuple[float, float]
    #: Deadline as a multiple of the time at its fastest measured level (least, most); None: no deadline.
    tightness: tuple[float, float] | None


MIX = (
    Kind("tight deadline", "slo", 0.30, (60.0, 150.0), (1.25, 1.8)),
    Kind("loose deadline", "slo", 0.25, (60.0, 180.0), (4.0, 8.0)),
    Kind("impossible deadline", "slo", 0.05, (120.0, 180.0), (0.5, 0.7)),
    Kind("deadline as a wish", "soft", 0.15, (60.0, 120.0), (1.5, 3.0)),
    Kind("best effort", "best_effort", 0.25, (40.0, 120.0), None),
)
#: Added where servers can be borrowed: work without urgency, long enough to use idle GPUs.
FOR_LOANS = Kind("long, whenever", "best_effort", 0.35, (180.0, 420.0), None)
#: Time for start, hand-over and the last write of a job, in addition to training.
_OVERHEAD_SECONDS = 12.0


@dataclass(frozen=True)
class Measured:
    """Profile of one function: iterations per second on one GPU and at the best level."""

    #: Name and version of the function.
    reference: str
    #: Options of the jobs that run it.
    options: JobOptions
    single: float
    fastest: float


def run_demo(settings: PlatformSettings, *, minutes: float, seed: int) -> None:
    """Submit jobs for `minutes`. Raises LaunchError if no platform runs on these settings or it refuses."""
    folders = Folders(settings.data)
    state = read_state(folders)
    if state is None or not state["ready"]:
        raise LaunchError("no platform runs on this data (or it is still starting): `make run` first")
    url = str(state["web_url"])
    secrets = Credentials.load(folders.secrets)
    try:
        token = _log_in(url, DEMO_USER, secrets.demo_password)
        operators_token = _log_in(url, OPERATOR_USER, secrets.operator_password)
        with (
            Client(url, token=token, project=_project(url, token)) as client,
            Client(url, token=operators_token) as operator,
        ):
            began_at = datetime.now(UTC)
            names = [str(cluster["name"]) for cluster in operator.inference.clusters()]
            # Without an inference scheduler nothing is lent.
            lenders = [name for name in names if operator.inference.usage(name, limit=1)]
            if not lenders:
                print(HOW_TO_BORROW)
            mix = (*MIX, FOR_LOANS) if lenders else MIX
            jobs = _submit_mix(client, random.Random(seed), minutes, mix)
            print(f"All submitted. Watch them on {url}/")
            for name in lenders:
                report = read_report(operator, name, jobs, began_at, datetime.now(UTC))
                print("\n".join(report.lines()))
    except PunctualError as error:
        raise LaunchError(str(error)) from error


def _log_in(url: str, username: str, password: str) -> str:
    with Client(url, token="none") as stranger:
        return stranger.login(username, password, token_name="demo")


def _project(url: str, token: str) -> str:
    with Client(url, token=token) as client:
        names = sorted(project.name for project in client.projects.list())
    if not names:
        raise LaunchError("the demo user has no project any more")
    return "demo" if "demo" in names else names[0]


def _submit_mix(client: Client, chance: random.Random, minutes: float, mix: Sequence[Kind]) -> list[Job]:
    """Submit jobs at random times for `minutes`. Returns all of them."""
    print("Measuring the example functions (their first jobs are profiled)")
    first_jobs = {name: _first_job(client, name) for name in FUNCTIONS}
    measured = [_measured(name, job) for name, job in first_jobs.items()]
    jobs = list(first_jobs.values())
    end = time.monotonic() + minutes * 60
    for number, kind in enumerate(_kinds(chance, mix), start=1):
        if time.monotonic() >= end:
            break
        function = chance.choice(measured)
        job = client.submit(
            function.reference, verdict_seconds=10, **_options(chance, kind, function, number)
        )
        jobs.append(job)
        _tell(job, kind)
        # Random arrivals, with bursts and pauses.
        time.sleep(min(chance.expovariate(1 / _MEAN_SECONDS_BETWEEN_JOBS), max(0.0, end - time.monotonic())))
    return jobs


def _first_job(client: Client, name: str) -> Job:
    options: JobOptions = {
        **FUNCTIONS[name],
        "name": f"{name}: first run",
        "max_iterations": 60,
        "labels": {"demo": "first run"},
    }
    return client.submit(PROJECT / "examples" / f"{name}.py", verdict_seconds=0, **options)


def _measured(name: str, job: Job) -> Measured:
    job.wait_for_verdict(_PROFILING_SECONDS)
    if job.state == "failed":
        raise LaunchError(f"{name} could not be measured: {job.failure}")
    rates = {
        int(level["gpus"]): float(level["iterations_per_second"]) for level in job.curve().get("levels", [])
    }
    if not rates or job.function is None:
        raise LaunchError(f"{name} has no measured level (job {job.id})")
    print(f"  {name}: " + ", ".join(f"{gpus} GPUs {rate:.1f} it/s" for gpus, rate in sorted(rates.items())))
    return Measured(job.function.reference, FUNCTIONS[name], rates[min(rates)], max(rates.values()))


def _kinds(chance: random.Random, mix: Sequence[Kind]) -> Iterator[Kind]:
    while True:
        yield chance.choices(mix, weights=[kind.share for kind in mix])[0]


def _options(chance: random.Random, kind: Kind, function: Measured, number: int) -> JobOptions:
    iterations = max(20, round(chance.uniform(*kind.single_gpu_seconds) * function.single))
    options: JobOptions = {
        **function.options,
        "name": f"{kind.name} {number}",
        "max_iterations": iterations,
        "service_class": kind.service_class,
        "labels": {"demo": kind.name},
        "seed": number,
    }
    if kind.tightness is not None:
        tightness = chance.uniform(*kind.tightness)
        options["deadline"] = iterations / function.fastest * tightness + (
            _OVERHEAD_SECONDS if tightness > 1 else 0.0
        )
    return options


def _tell(job: Job, kind: Kind) -> None:
    verdict = job.verdict.reason if job.verdict is not None else ""
    offer = f"; offered {job.offer.deadline_at:%H:%M:%S} UTC" if job.offer and job.offer.deadline_at else ""
    print(f"  {kind.name:<20} {job.state:<10} {verdict}{offer}")
