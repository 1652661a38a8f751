"""Studies that operators ask for, and the runs that answer them."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES, NewcomersRule, WorkState
from cluster.models.leased_work import LeasedWork, lease_constraints
from simulation.choices import StudySource


class SimulationStudy(models.Model):
    """One question: given jobs, on a given cluster, under some policies and numbers of servers.

    Whatever differs between runs is in the runs. ``live_state`` is the live cluster at the time of the study,
    compressed (`simulation/live/state.py`), so that every run starts from the same moment.
    """

    name = models.CharField(max_length=200)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    source = models.CharField(max_length=5, choices=StudySource.choices)
    trace = models.CharField(max_length=200, blank=True)
    live_state = models.BinaryField(null=True, blank=True)

    gpu_type = models.CharField(max_length=100, blank=True, help_text="Empty: the trace's own.")
    gpus_per_server = models.PositiveIntegerField()
    slot_seconds = models.FloatField()
    pauses = models.CharField(max_length=10)
    fill = models.CharField(max_length=10)
    reserve_servers = models.PositiveIntegerField(default=0)
    reserve_slack_seconds = models.FloatField(default=0.0)
    promise_margin = models.FloatField(default=0.0)
    failures_per_server_day = models.FloatField(default=0.0)
    seed = models.PositiveIntegerField(default=0)
    limit_jobs = models.PositiveIntegerField(null=True, blank=True)
    best_effort_share = models.FloatField(default=0.0)
    #: Whether its runs also compute how many deadlines any schedule could meet.
    bound = models.BooleanField(default=True)

    #: Settings of lending, empty if no run lends: usage by name (`simulation/services/lending.py`), the kind
    #: of the inference cluster's GPUs, the method of choosing servers to return, the share that is never
    #: lent, and the forecaster ("none" for no forecasts).
    inference_usage = models.CharField(max_length=60, blank=True)
    inference_gpu_type = models.CharField(max_length=100, blank=True)
    reclaim = models.CharField(max_length=10, blank=True)
    headroom = models.FloatField(null=True, blank=True)
    forecaster = models.CharField(max_length=40, blank=True)
    #: Decisions made for the requester, in sentences.
    notes = models.JSONField(default=list, blank=True)

    #: Key of the comparison of ``compared_runs`` in the store; empty before the first run is done.
    comparison_key = models.CharField(max_length=200, blank=True)
    compared_runs = models.JSONField(default=list)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(source=StudySource.TRACE, live_state__isnull=True) & ~Q(trace="")
                | Q(source=StudySource.LIVE, live_state__isnull=False, trace=""),
                name="study_has_one_source",
            ),
            models.CheckConstraint(
                condition=Q(gpus_per_server__gt=0, slot_seconds__gt=0), name="study_has_a_cluster"
            ),
            models.CheckConstraint(
                condition=Q(
                    inference_usage="",
                    inference_gpu_type="",
                    reclaim="",
                    forecaster="",
                    headroom__isnull=True,
                )
                | ~Q(inference_usage="")
                & ~Q(inference_gpu_type="")
                & ~Q(reclaim="")
                & ~Q(forecaster="")
                & Q(headroom__gte=0.0, headroom__lte=1.0),
                name="study_says_all_of_its_loans_or_nothing",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def lends(self) -> bool:
        """Whether servers are lent in some of its runs."""
        return bool(self.inference_usage)


class SimulationRun(LeasedWork):
    """One policy on one number of servers, beside one number of inference servers that may lend, or 0.

    ``newcomers``: whether room is kept for jobs that need little.

    ``simulated_seconds`` and ``jobs_ended`` of ``jobs_total`` are its progress.
    """

    study = models.ForeignKey(SimulationStudy, on_delete=models.CASCADE, related_name="runs")
    policy = models.CharField(max_length=40)
    servers = models.PositiveIntegerField()
    inference_servers = models.PositiveIntegerField(default=0)
    newcomers = models.CharField(max_length=10, choices=NewcomersRule.choices, default=NewcomersRule.OPEN)

    jobs_total = models.PositiveIntegerField(default=0)
    jobs_ended = models.PositiveIntegerField(default=0)
    simulated_seconds = models.FloatField(default=0.0)

    summary = models.JSONField(null=True, blank=True)
    #: Folder of the run's Parquet files in the store.
    results_key = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            *lease_constraints("run"),
            models.UniqueConstraint(
                fields=["study", "policy", "servers", "inference_servers", "newcomers"],
                name="run_once_per_study",
            ),
            models.CheckConstraint(condition=Q(servers__gt=0), name="run_has_servers"),
            models.CheckConstraint(condition=Q(jobs_ended__lte=F("jobs_total")), name="run_ends_known_jobs"),
            models.CheckConstraint(
                condition=Q(state=WorkState.DONE, summary__isnull=False) & ~Q(results_key="")
                | ~Q(state=WorkState.DONE) & Q(summary__isnull=True, results_key=""),
                name="done_run_has_results",
            ),
            models.CheckConstraint(
                condition=Q(state=WorkState.FAILED) & ~Q(error="") | ~Q(state=WorkState.FAILED) & Q(error=""),
                name="failed_run_says_why",
            ),
        ]
        indexes = [
            models.Index(
                fields=["state"], condition=~Q(state__in=FINAL_WORK_STATES), name="simulation_run_unfinished"
            )
        ]

    def __str__(self) -> str:
        return f"{self.rule()} on {self.cluster()} servers"

    def rule(self) -> str:
        """Return its policy, followed by the rule for newcomers if that is not the default."""
        return self.policy if self.newcomers == NewcomersRule.OPEN else f"{self.policy} {self.newcomers}"

    def cluster(self) -> str:
        """Return its training servers as text, with inference servers if there are any."""
        return f"{self.servers} + {self.inference_servers}" if self.inference_servers else str(self.servers)

    def finished(self) -> bool:
        """Return whether the run is in a final state."""
        return self.state in FINAL_WORK_STATES

    def progress(self) -> float:
        """Return the share of jobs that have ended, 0 to 1."""
        if self.state == WorkState.DONE:
            return 1.0
        return self.jobs_ended / self.jobs_total if self.jobs_total else 0.0

    def seconds_running(self, now: datetime) -> float | None:
        """Return the duration so far of the present or last attempt; None before the first."""
        if self.started_at is None:
            return None
        return ((self.finished_at or now) - self.started_at).total_seconds()
