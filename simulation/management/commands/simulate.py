"""`manage.py simulate`: one workload under one policy on a virtual clock. Needs no database and no broker."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.core.question.snapshot import AdmissionRule, Fill, Newcomers
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import (
    Imperfections,
    PoolSize,
    Recovery,
    SimulationSettings,
    require_pricing,
)
from simulation.engine.outside.failures import rate_of_failures, read_failures, reserve_slack_seconds
from simulation.engine.outside.server_ends import NOTICE_SECONDS, read_server_ends
from simulation.engine.outside.server_memory import BYTES_PER_GB, server_memory_bytes
from simulation.engine.progress import progress_bar
from simulation.engine.run import Simulation
from simulation.management.lending_options import add_lending_options, ageing_weight, sharing_settings
from simulation.outcome import RunOutcome
from simulation.policies import POLICIES
from simulation.reports.html import write_report
from simulation.reports.parquet import write_parquet
from simulation.reports.summary import summary
from simulation.reports.text import summary_lines
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.workload import Workload


class Command(BaseCommand):
    """Simulate a trace, or a synthetic workload, under a scheduling policy."""

    help = "Simulate a trace or a synthetic workload under a scheduling policy."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options of a simulation."""
        _add_cluster(parser)
        _add_planner(parser)
        _add_failures(parser)
        _add_host_memory(parser)
        _add_recovery(parser)
        _add_imperfections(parser)
        _add_jobs(parser)
        add_lending_options(parser)
        parser.add_argument("--json", type=Path, help="write the summary here; - for standard output")
        parser.add_argument("--report", type=Path, help="write an HTML report here")
        parser.add_argument("--parquet", type=Path, help="write all results to this folder")
        parser.add_argument("--check", action="store_true", help="check the invariants after each event")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, then write the requested output."""
        try:
            workload = _workload(options)
            settings = _settings(options, workload)
            settings = replace(
                settings,
                known_ends=read_server_ends(
                    options["server_ends"], options["server_end_notice_seconds"], settings, workload
                ),
            )
            happenings = read_failures(options["failures"], settings, workload)
        except (TraceError, ValueError, OSError) as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError("interrupted before the simulation began") from None
        with progress_bar(sys.stderr, workload.name) as progress:
            try:
                simulation = Simulation(workload, settings, happenings, progress=progress)
            except ValueError as error:
                raise CommandError(str(error)) from None
            outcome = simulation.run()
        self._write(outcome, options)
        if outcome.interrupted:
            raise CommandError("interrupted: the results are those of the time until then")

    def _write(self, outcome: RunOutcome, options: dict[str, Any]) -> None:
        facts = summary(outcome)
        if options["json"] is not None:
            text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
            if str(options["json"]) == "-":
                self.stdout.write(text)
            else:
                options["json"].write_text(text)
        if options["parquet"] is not None:
            write_parquet(outcome, options["parquet"])
        if options["report"] is not None:
            title = f"{outcome.settings['policy']} on {outcome.settings['trace']}"
            write_report([outcome], options["report"], title=title)
        if str(options["json"]) != "-":
            self.stdout.write(summary_lines(facts))


def _add_cluster(parser: ArgumentParser) -> None:
    """Workload, policy and cluster."""
    parser.add_argument(
        "--trace", required=True, help="trace file, public trace's name, or synthetic profile"
    )
    parser.add_argument("--policy", default="punctual", choices=sorted(POLICIES))
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--gpus-per-server", type=int, required=True)
    parser.add_argument("--throughputs", type=Path, help="measured throughput: table or folder of tables")
    parser.add_argument(
        "--gpu-type", help="one type, or several pools as TYPE:SERVERS,...; default: the trace's own"
    )
    parser.add_argument("--slot-seconds", type=float, help="default: 60; 30 for jobs with ranges of workers")
    parser.add_argument(
        "--pauses",
        choices=[one.value for one in Pauses],
        help="default: measured; none for jobs with ranges of workers",
    )


def _add_planner(parser: ArgumentParser) -> None:
    """What the operator of a live cluster chooses."""
    parser.add_argument("--reserve-servers", type=int, default=0)
    parser.add_argument(
        "--standby-servers",
        type=int,
        default=0,
        help="servers of each pool that are kept free until they replace lost ones",
    )
    parser.add_argument(
        "--reserve-slack-seconds",
        type=float,
        help="slack of each promise for failures; default: the computed cost of a failure",
    )
    parser.add_argument("--fill", choices=[one.value for one in Fill], default=Fill.UNIFORM.value)
    parser.add_argument(
        "--admission", choices=[one.value for one in AdmissionRule], default=AdmissionRule.PER_JOB.value
    )
    parser.add_argument(
        "--newcomers",
        choices=[one.value for one in Newcomers],
        default=Newcomers.OPEN.value,
        help="prudent: room is kept for newcomers that need little; default: open",
    )
    parser.add_argument(
        "--bound", action="store_true", help="also compute how many deadlines any schedule could meet"
    )


def _add_failures(parser: ArgumentParser) -> None:
    """Servers that are lost, and those that leave at a known time."""
    parser.add_argument("--failures", help="file of failures, or mean failures of one server a day")
    parser.add_argument(
        "--server-ends",
        help="servers that leave at a known time: a file (server, ends_at_seconds, known_at_seconds), or "
        "mean ends of one server a day",
    )
    parser.add_argument(
        "--server-end-notice-seconds",
        type=float,
        help=f"with a rate: how long before its end it becomes known; default: {NOTICE_SECONDS:g}",
    )


def _add_host_memory(parser: ArgumentParser) -> None:
    """Servers' memory and workers' need of it."""
    parser.add_argument(
        "--server-memory-gb",
        help="host memory of each server: GB for all, or a file (server, memory_gb); default: no limit",
    )
    parser.add_argument(
        "--worker-memory-gb",
        type=float,
        help="host memory of one worker of each job for which neither trace nor table has it",
    )
    parser.add_argument(
        "--least-worker-memory-gb",
        type=float,
        help="servers with less host memory for each GPU are not used; default: 0",
    )


def _add_recovery(parser: ArgumentParser) -> None:
    """What jobs of a lost server begin again from."""
    parser.add_argument(
        "--recovery",
        choices=[one.value for one in Recovery],
        default=Recovery.DURABLE.value,
        help="what jobs of a lost server resume from; default: durable storage alone",
    )
    parser.add_argument(
        "--replicas", type=int, default=2, help="copies of a state with --recovery memory; default: 2"
    )


def _add_imperfections(parser: ArgumentParser) -> None:
    """Differences between reality and the planner's data."""
    parser.add_argument(
        "--profile-error", type=float, default=0.0, help="e.g. 0.05: speeds off by up to 5 %%"
    )
    parser.add_argument("--promise-margin", type=float, default=0.0)
    parser.add_argument("--agent-latency-seconds", type=float, default=0.0)


def _add_jobs(parser: ArgumentParser) -> None:
    """Which jobs of the workload there are."""
    parser.add_argument("--limit-jobs", type=int)
    parser.add_argument("--best-effort-share", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


def _workload(options: dict[str, Any]) -> Workload:
    return load_workload(
        options["trace"],
        throughputs=options["throughputs"],
        gpu_type=options["gpu_type"].split(",")[0].split(":")[0] if options["gpu_type"] else None,
        seed=options["seed"],
        limit_jobs=options["limit_jobs"],
        options=WorkloadOptions(
            best_effort_share=options["best_effort_share"],
            worker_memory_bytes=_bytes(options, "worker_memory_gb"),
        ),
    )


def _settings(options: dict[str, Any], workload: Workload) -> SimulationSettings:
    for name in ("servers", "gpus_per_server", "replicas"):
        if options[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {options[name]}")
    if options["standby_servers"] < 0:
        raise ValueError(f"--standby-servers must not be negative, not {options['standby_servers']}")
    if options["slot_seconds"] is not None and options["slot_seconds"] <= 0:
        raise ValueError(f"--slot-seconds must be above 0, not {options['slot_seconds']:g}")
    if options["worker_memory_gb"] is not None and options["server_memory_gb"] is None:
        raise ValueError("--worker-memory-gb is compared with --server-memory-gb: give that too")
    sharing = sharing_settings(options, workload)
    with_ranges = sharing is not None and not sharing.by_curves
    settings = SimulationSettings(
        policy=options["policy"],
        pools=_pools(
            options["gpu_type"] or reference_gpu_type(workload),
            options["servers"],
            options["gpus_per_server"],
        ),
        slot_seconds=options["slot_seconds"] or (30.0 if with_ranges else 60.0),
        pauses=Pauses(options["pauses"] or (Pauses.NONE if with_ranges else Pauses.MEASURED)),
        fill=Fill(options["fill"]),
        admission=AdmissionRule(options["admission"]),
        reserve_servers=options["reserve_servers"],
        standby_servers=options["standby_servers"],
        seed=options["seed"],
        imperfections=Imperfections(
            profile_error=options["profile_error"],
            promise_margin=options["promise_margin"],
            agent_latency_seconds=options["agent_latency_seconds"],
        ),
        check_invariants=options["check"],
        sharing=sharing,
        newcomers=Newcomers(options["newcomers"]),
        ageing_weight=ageing_weight(options),
        bound=options["bound"],
        server_memory_bytes=server_memory_bytes(options["server_memory_gb"], options["servers"]),
        worker_memory_bytes=_bytes(options, "least_worker_memory_gb") or 0.0,
        recovery=Recovery(options["recovery"]),
        replicas=options["replicas"],
        failures_per_server_day=rate_of_failures(options["failures"]) or 0.0,
    )
    require_pricing(settings)
    fewest = min(pool.servers for pool in settings.pools)
    if settings.standby_servers >= fewest:
        raise ValueError(
            f"--standby-servers {settings.standby_servers} leaves nothing of {fewest} servers to plan on"
        )
    slack = options["reserve_slack_seconds"]
    return replace(
        settings,
        reserve_slack_seconds=reserve_slack_seconds(settings, workload) if slack is None else slack,
    )


def _bytes(options: dict[str, Any], name: str) -> float | None:
    """What an option says in gigabytes, in bytes; None where it was not given."""
    gigabytes = options[name]
    if gigabytes is None:
        return None
    if not isfinite(gigabytes) or gigabytes < 0:
        raise ValueError(f"--{name.replace('_', '-')} must not be negative, not {gigabytes:g}")
    return float(gigabytes) * BYTES_PER_GB


def _pools(gpu_type: str, servers: int, gpus_per_server: int) -> tuple[PoolSize, ...]:
    pools: list[PoolSize] = []
    for part in gpu_type.split(","):
        kind, _, count = part.partition(":")
        if count and not count.isdigit():
            raise ValueError(f"--gpu-type: {part!r} should read TYPE or TYPE:SERVERS, like A100:16")
        if any(pool.kind == kind.strip() for pool in pools):
            raise ValueError(f"--gpu-type names {kind.strip()} twice; each pool has a kind of its own")
        pools.append(PoolSize(kind.strip(), int(count) if count else servers, gpus_per_server))
    return tuple(pools)
