"""The agent's record of one worker, and the part of it that survives a restart of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from workers.agent.machine import clock
from workers.agent.machine.durable_files import read_json, write_json_soon
from workers.agent.orders.decisions import WorkerView
from workers.agent.orders.desired_state import GenerationDesire, Goal, Purpose, WorkerSlot
from workers.agent.processes.worker_processes import ExitStatus, LauncherHandle

# A worker may end in these phases: it has finished its goal, or reported its failure.
ENDING_PHASES = frozenset({"completed", "suspended", "handed_over", "failed"})
LEASE_ENDED = "its lease ended"
STARTING_PHASES = frozenset({"starting", "preparing"})
# A worker's steps in order: it may skip some, but never goes back.
_STEPS: tuple[tuple[str, ...], ...] = (
    ("starting",),
    ("preparing",),
    ("ready",),
    ("loading", "profiling"),
    ("training", "serving"),
    ("handing_over", "suspending", "finishing", "draining"),
    ("handed_over", "suspended", "completed"),
    ("failed",),
)
#: In these steps it has started, and loads its state or has loaded it.
READY_STEPS = range(2, 7)
STEP_OF_PHASE: Mapping[str, int] = {phase: step for step, phases in enumerate(_STEPS) for phase in phases}


@dataclass(frozen=True)
class Assignment:
    """A worker's rank of a generation. `specification`: the control plane's entry."""

    job: str
    generation: int
    purpose: Purpose
    rank: int
    gpu_index: int
    specification: Mapping[str, Any]
    handover_port: int | None = None

    @classmethod
    def of(cls, desire: GenerationDesire, slot: WorkerSlot) -> Assignment:
        """Return the assignment of a slot."""
        return cls(
            desire.job,
            desire.generation,
            desire.purpose,
            slot.rank,
            slot.gpu_index,
            dict(desire.specification),
            slot.handover_port,
        )


@dataclass
class WorkerRecord:
    """One worker: a folder, perhaps a process, perhaps an assignment.

    `provisioned`: its box contains what the assignment needs. `start`: source of its state, from the control
    plane; `local_start`: the same with its shards' files in the box. `user_id`: reserved for it while it
    runs.
    """

    key: str
    #: The worker's folder below the agent's data.
    folder: Path
    runtime: str
    user_id: int | None
    accelerator_index: int | None
    #: Its process; None before the start.
    launcher: LauncherHandle | None = None
    assignment: Assignment | None = None
    goal: Goal | None = None
    start: Mapping[str, Any] | None = None
    local_start: Mapping[str, Any] | None = None
    fetching_start: Mapping[str, Any] | None = None
    provisioned: bool = False
    #: Whether its socket is connected.
    connected: bool = False
    #: When its processes ended, by the boot clock.
    silent_since: float | None = None
    #: Whether it started without an assignment.
    warm: bool = False
    #: Its last reported phase.
    phase: str = "starting"
    iteration: int = 0
    #: When it was ready to load its state, by the boot clock; None before.
    ready_at: float | None = None
    heard_at: float = field(default_factory=clock.boot_time_seconds)
    lease_deadline: float = 0.0
    #: When it is killed regardless of the lease; None: only the lease ends it.
    ends_at: float | None = None
    stop_deadline: float | None = None
    kill_reason: str | None = None
    #: Deadline for its launcher to end it, by the boot clock; None: it need not end yet.
    dead_by: float | None = None
    #: How it ended; None while it runs.
    exit: ExitStatus | None = None
    #: Bytes of its log that are delivered.
    log_offset: int = 0
    events_heard: set[str] = field(default_factory=set)
    refusals: int = 0
    #: For a deployment's replica: its newest counts, and when they came, by the boot clock.
    counts: Mapping[str, Any] | None = None
    counts_heard_at: float = 0.0

    @property
    def box(self) -> Path:
        """The folder visible to the worker."""
        return self.folder / "box"

    @property
    def alive(self) -> bool:
        """Whether it may still run."""
        return self.exit is None

    @property
    def timed_out(self) -> bool:
        """Whether it was ended by its own time limit, rather than because its lease was not renewed."""
        ended = self.exit is not None and self.exit.reason == "lease_ended"
        return ended and self.ends_at is not None and self.lease_deadline >= self.ends_at

    @property
    def log_size(self) -> int:
        """Size of its log in bytes."""
        try:
            return (self.folder / "worker.log").stat().st_size
        except FileNotFoundError:
            return 0

    def log_tail(self, length_bytes: int) -> str:
        """Return the end of its log."""
        try:
            with (self.folder / "worker.log").open("rb") as file:
                file.seek(max(0, self.log_size - length_bytes))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def view(self, *, settled: bool) -> WorkerView | None:
        """Return the decision's view of it; None for a warm worker."""
        if self.assignment is None:
            return None
        return WorkerView(
            key=self.key,
            job=self.assignment.job,
            purpose=self.assignment.purpose,
            generation=self.assignment.generation,
            rank=self.assignment.rank,
            alive=self.alive,
            goal=self.goal,
            start=self.start,
            settled=settled,
        )

    def listing(self) -> dict[str, Any] | None:
        """Return the worker as reported (protocol 2.2); None for a warm one."""
        if self.assignment is None:
            return None
        return {
            "key": self.key,
            "job": self.assignment.job,
            "generation": self.assignment.generation,
            "rank": self.assignment.rank,
            "gpu_index": self.assignment.gpu_index,
            "phase": self.phase if self.alive else "exited",
            "iteration": self.iteration,
            "age_seconds": max(0.0, clock.boot_time_seconds() - self.heard_at),
            "ready_age_seconds": (
                None if self.ready_at is None else max(0.0, clock.boot_time_seconds() - self.ready_at)
            ),
            "exit": None if self.exit is None else self.exit.to_json(),
        }

    def counts_entry(self) -> dict[str, Any] | None:
        """Return a replica's counts as reported (protocol 2.12); None without counts."""
        if self.assignment is None or self.counts is None:
            return None
        return {
            **self.counts,
            "job": self.assignment.job,
            "generation": self.assignment.generation,
            "rank": self.assignment.rank,
            "age_seconds": max(0.0, clock.boot_time_seconds() - self.counts_heard_at),
        }

    def save_assignment(self) -> None:
        """Make the assignment durable."""
        assert self.assignment is not None
        if not self.folder.exists():
            return  # there was no room for its folder, so it never ran
        write_json_soon(
            self.folder / "assignment.json",
            {
                **self.assignment.__dict__,
                "goal": self.goal,
                "start": self.start,
                "local_start": self.local_start,
                "provisioned": self.provisioned,
                "ends_at": self.ends_at,
            },
        )

    def save_progress(self) -> None:
        """Store what a restarted agent reports until the worker has reconnected. A power cut may lose it, as
        it ends the worker."""
        write_json_soon(
            self.folder / "progress.json",
            {
                "phase": self.phase,
                "iteration": self.iteration,
                "ready_at": self.ready_at,
                "log_offset": self.log_offset,
                "kill_reason": self.kill_reason,
            },
            durable=False,
        )

    def load(self) -> None:
        """Load what an earlier run of the agent stored."""
        stored = read_json(self.folder / "assignment.json")
        if stored is not None:
            self.goal = cast("Goal | None", stored.pop("goal"))
            self.start, self.local_start = stored.pop("start"), stored.pop("local_start")
            self.provisioned = stored.pop("provisioned")
            self.ends_at = stored.pop("ends_at", None)
            self.assignment = Assignment(**stored)
        for name, value in (read_json(self.folder / "progress.json") or {}).items():
            setattr(self, name, value)
