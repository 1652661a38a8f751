"""A burst of newcomers through the services: rows, snapshots, passes, commits. Run it as
`python -m benchmarks.long.burst --live`.

It has its own PostgreSQL and broker, declared servers without agents, and functions of known speed. The
passes follow each other in one process, as in the planner's one task. Progress goes to standard error; times
are wall time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.long.burst_newcomers import curves, newcomers
from benchmarks.scheduling.core_scaling import GPUS_PER_SERVER
from scheduling.core.question.snapshot import NO_DEADLINE, JobSnapshot
from scheduling.policies.punctual import Punctual

TOLD_EVERY_SECONDS = 2.0
UNMEASURED = "unmeasured"
"""The mix of newcomers that never get a curve."""
FIRST = 20
"""Newcomers of the burst that only opens connections."""


@contextmanager
def servers_of_its_own() -> Iterator[None]:
    """Run PostgreSQL and a broker for this run, and set up Django with them."""
    from launch.postgresql import EmbeddedPostgres
    from launch.privileges import child_setup, unprivileged_identity
    from launch.valkey import EmbeddedValkey
    from launch.waiting import wait_until

    identity = unprivileged_identity()
    with tempfile.TemporaryDirectory(prefix="punctual-burst-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = EmbeddedPostgres(folder / "postgresql", folder / "sql", identity, durable=False)
        valkey = EmbeddedValkey(folder / "valkey", folder / "broker", durable=False)
        running: list[tuple[subprocess.Popen[bytes], int]] = []
        try:
            for server in (postgres, valkey):
                server.prepare()
                known = server.identity if isinstance(server, EmbeddedPostgres) else None
                child = subprocess.Popen(
                    server.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                    preexec_fn=child_setup(server.stop_signal, identity=known),
                    **(known.popen_arguments() if known else {}),  # type: ignore[call-overload]
                )  # fmt: skip
                running.append((child, server.stop_signal))
                wait_until(server.is_ready, timeout_seconds=60)
            postgres.create_database()
            os.environ |= {
                "DATABASE_URL": postgres.url(), "REDIS_URL": valkey.url(), "PUNCTUAL_DATA": str(folder),
                "SECRET_KEY": "only-for-this-run-0123456789-0123456789-0123456789",
                "DJANGO_SETTINGS_MODULE": "config.settings",
            }  # fmt: skip
            import django
            from django.core.management import call_command

            django.setup()
            tell("tables are made")
            call_command("migrate", verbosity=0)
            yield
        finally:
            # PostgreSQL's smart stop would wait for every client, of which this process is one.
            for child, stop_signal in running:
                child.send_signal(stop_signal)
            for child, _ in running:
                child.wait()


def tell(text: str) -> None:
    """Print progress, separately from the figures."""
    print(f"  {text}", file=sys.stderr, flush=True)


class Spent:
    """Seconds by cause: statements of the database, the decision core, the rest."""

    def __init__(self) -> None:
        self.sql = self.core = 0.0
        self.statements = 0

    def statement(
        self, execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any
    ) -> Any:
        """Wrap each statement, as `connection.execute_wrapper` needs it."""
        began = time.perf_counter()
        try:
            return execute(sql, parameters, many, context)
        finally:
            self.sql += time.perf_counter() - began
            self.statements += 1

    def of_core(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of the policy to time it."""

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.core += time.perf_counter() - began

        return timed

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens inside the context."""
        from django.db import connection

        with ExitStack() as stack:
            stack.enter_context(connection.execute_wrapper(self.statement))
            for name in ("admit", "replan", "find_offer"):
                stack.enter_context(patch.object(Punctual, name, self.of_core(getattr(Punctual, name))))
            yield


def measured_live(count: int, gpus: int, mix: str, seed: int, *, by_service: bool) -> dict[str, Any]:
    """Return the figures of one burst. ``by_service``: each job is submitted as the API does it, instead of
    all in one statement."""
    tell(f"{count} newcomers, mix {mix}, {gpus} GPUs")
    burst(FIRST, gpus, mix, seed + 1, by_service=False)
    return burst(count, gpus, mix, seed, by_service=by_service)


def burst(count: int, gpus: int, mix: str, seed: int, *, by_service: bool) -> dict[str, Any]:
    """Run one burst on an empty cluster."""
    from django.core.management import call_command
    from django.utils import timezone

    from scheduling.models import Decision, Job
    from scheduling.services.planning.planning import run_planner

    call_command("flush", interactive=False, verbosity=0)
    cluster = DeclaredCluster(gpus, curves(np.random.default_rng(seed), gpus))
    run_planner("the first slot begins")
    began = time.perf_counter()
    jobs = newcomers(count, gpus, "mixed" if mix == UNMEASURED else mix, seed)
    cluster.submit(jobs, timezone.now(), by_service=by_service)
    if mix == UNMEASURED:
        cluster.forget_speeds()
    submitting = time.perf_counter() - began
    spent = Spent()
    with spent.counted():
        seconds, processor, until_decided = passes_until_decided(count)
    rows = list(Job.objects.values_list("state", "promised"))
    states = Counter(state for state, _ in rows)
    return {
        "gpus": gpus,
        "mix": mix,
        "newcomers": len(rows),
        "promised": sum(promised for _, promised in rows),
        "declined": states["declined"],
        "failed": states["failed"],
        "submitting_seconds": submitting,
        "passes": len(seconds),
        "reallocations": Decision.objects.filter(kind=Decision.Kind.REALLOCATION).count(),
        "longest_pass_seconds": max(seconds),
        "longest_pass_processor_seconds": max(processor),
        "until_all_are_decided_seconds": until_decided,
        "core_seconds": spent.core,
        "sql_seconds": spent.sql,
        "other_seconds": sum(seconds) - spent.core - spent.sql,
        "statements": spent.statements,
    }


def passes_until_decided(count: int) -> tuple[list[float], list[float], float]:
    """Return seconds and CPU seconds of every pass, and seconds until no job waits."""
    from cluster.models import Cluster
    from scheduling.choices import UNDECIDED_STATES, CurveState
    from scheduling.models import Job
    from scheduling.services.planning.planning import newcomers_wait, run_planner

    hopeless = Job.objects.filter(state__in=UNDECIDED_STATES).exclude(curve__state=CurveState.READY)

    seconds: list[float] = []
    processor: list[float] = []
    began = told = time.perf_counter()
    while newcomers_wait(Cluster.objects.get()) or hopeless.exists():
        pass_began, worked = time.perf_counter(), time.process_time()
        run_planner("burst")
        now = time.perf_counter()
        seconds.append(now - pass_began)
        processor.append(time.process_time() - worked)
        if now - told > TOLD_EVERY_SECONDS:
            told = now
            waiting = Job.objects.filter(state__in=UNDECIDED_STATES).count()
            tell(
                f"{now - began:.0f} s: {count - waiting} of {count} decided in {len(seconds)} passes, the "
                f"longest {max(seconds):.2f} s"
            )
    return seconds, processor, time.perf_counter() - began


class DeclaredCluster:
    """Rows of a cluster without agents, and of functions of known speed."""

    def __init__(self, gpus: int, known: Sequence[dict[int, float]]) -> None:
        from django.utils import timezone

        from cluster.models import Agent, Cluster, Gpu, Server
        from projects.models import Project, User
        from scheduling.choices import CurveState
        from scheduling.models import Bundle, CurveLevel, Function, FunctionVersion
        from scheduling.services.requests.jobs import curve_for

        self.cluster = Cluster.objects.create(name="default", promise_margin=0.0)
        for number in range(gpus // GPUS_PER_SERVER):
            server = Server.objects.create(
                cluster=self.cluster, name=f"node-{number}", address="127.0.0.1", port_first=20_000,
                port_last=29_000,
                hostname=f"node-{number}", cpu_cores=16, memory_bytes=2**36, sandbox="namespaces",
            )  # fmt: skip
            Agent.objects.create(server=server, credential_digest=str(number), last_report_at=timezone.now())
            Gpu.objects.bulk_create(
                Gpu(
                    server=server, index=index, kind="declared", emulated=True, uuid=f"{number}-{index}",
                    memory_bytes=2**35,
                )
                for index in range(GPUS_PER_SERVER)
            )  # fmt: skip
        self.project = Project.objects.create(name="burst")
        self.owner = User.objects.create(username="burst")
        bundle = Bundle.objects.create(content=b"#", digest="0" * 64, size_bytes=1)
        function = Function.objects.create(project=self.project, name="burst")
        self.version = FunctionVersion.objects.create(function=function, number=1, bundle=bundle, entry="a:A")
        sample = newcomers(1, gpus, "mixed", 0)[0][0]
        self.curves = []
        for which, rates in enumerate(known):
            curve = curve_for(self.request(sample, which, timezone.now()), "declared")
            curve.state, curve.complete = CurveState.READY, True
            curve.save()
            self.curves.append(curve)
            CurveLevel.objects.bulk_create(
                CurveLevel(curve=curve, gpus=level, iterations_per_second=rate, samples=9, source="live")
                for level, rate in rates.items()
            )

    def forget_speeds(self) -> None:
        """Remove all speeds: half of the functions failed to be measured, and the jobs of the others have
        waited longer than allowed."""
        from django.db.models import F
        from django.utils import timezone

        from scheduling.choices import CurveState, ServiceClass
        from scheduling.models import CurveLevel, Job, ScalingCurve

        CurveLevel.objects.all().delete()  # a curve with levels counts as measured once its run has ended
        failed = [curve.pk for curve in self.curves[::2]]
        ScalingCurve.objects.update(state=CurveState.UNKNOWN)
        ScalingCurve.objects.filter(pk__in=failed).update(state=CurveState.FAILED, failure="ValueError: no")
        Job.objects.exclude(curve__in=failed).update(
            service_class=ServiceClass.SLO,
            submitted_at=F("submitted_at") - timedelta(hours=1),
            deadline_at=timezone.now() + timedelta(minutes=10),
        )

    def request(self, job: JobSnapshot, which: int, now: datetime) -> Any:
        """Return the owner's request."""
        from scheduling.services.requests.jobs import JobRequest

        deadline = None if job.deadline_at == NO_DEADLINE else now + timedelta(seconds=job.deadline_at)
        return JobRequest(
            function_version=self.version, name=job.id,
            hyperparameters={"global_batch_size": 1024, "function": which},
            max_iterations=max(1, round(job.remaining_iterations)), service_class=str(job.service_class),
            deadline_at=deadline,
        )  # fmt: skip

    def submit(self, burst: Sequence[tuple[JobSnapshot, int]], now: datetime, *, by_service: bool) -> None:
        """Store the newcomers, one by one as the API does or in bulk."""
        from scheduling.models import Job
        from scheduling.services.requests.jobs import job_submit

        requests = [(self.request(job, which, now), which) for job, which in burst]
        if by_service:
            for number, (request, _) in enumerate(requests, start=1):
                job_submit(project=self.project, owner=self.owner, request=request)
                if number % 500 == 0:
                    tell(f"{number} of {len(requests)} submitted")
            return
        Job.objects.bulk_create(
            Job(
                project=self.project, owner=self.owner, cluster=self.cluster, function_version=self.version,
                curve=self.curves[which], name=request.name, hyperparameters=request.hyperparameters,
                global_batch_size=request.global_batch_size, max_iterations=request.max_iterations,
                service_class=request.service_class, deadline_at=request.deadline_at,
                submitted_at=now + timedelta(microseconds=number),
            )
            for number, (request, which) in enumerate(requests)
        )  # fmt: skip
