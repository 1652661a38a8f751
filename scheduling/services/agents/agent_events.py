"""Applies workers' events, each once. Checkpoints and results of a stale generation are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.utils import timezone

from cluster.models import Agent, Cluster
from projects.prepared import PreparedRows
from punctual.protocol.events import CopyTraffic
from punctual.protocol.limits import LONGEST_PAUSE_SECONDS, MEMORY_EXCEEDED, NONFINITE, PLAN_REFUSED
from scheduling.choices import CurveState, GenerationState, JobEventKind, JobState, Purpose, RetireReason
from scheduling.core.question.quantities import duration_text, gpus_text, memory_text
from scheduling.core.question.worker_counts import measurable_levels
from scheduling.life_cycle.events import PEER_LOST
from scheduling.life_cycle.instructions import Fail
from scheduling.life_cycle.steps import WORKER_GONE
from scheduling.models import Artifact, Checkpoint, CurveLevel, Generation, Job, ScalingCurve
from scheduling.selectors.agents.own_work import OwnWork
from scheduling.services.agents.expert_routing import note_routing
from scheduling.services.agents.nonfinite import last_good_state, name_state, note_nonfinite, went_back
from scheduling.services.agents.recovering import advance_recoveries
from scheduling.services.generations.generations import let_go, retire
from scheduling.services.generations.lifecycle import advance, became_live, fail_worker
from scheduling.services.generations.measured_points import note_point_age, remembered
from scheduling.services.generations.pauses import note_pause, tell_pause
from scheduling.services.generations.plan_watch import could_not_follow, level_measured
from scheduling.services.generations.recovery_points import take_shard
from scheduling.services.gradients.gradient_profiles import note_profile, note_window
from scheduling.services.measuring.reported_mixtures import note_mixture
from scheduling.services.measuring.unfit_levels import level_did_not_fit, measuring_ended
from scheduling.services.memory.expert_levels import worker_counts_of
from scheduling.services.memory.host_memory import memory_of_all, raised, smallest_share, to_reserve
from scheduling.services.rows.records import move, planning_fact_changed, record
from scheduling.services.rows.report_refusals import RefusedEvent, note
from scheduling.services.rows.scoring import score_promise
from scheduling.services.rows.wakeups import wake

log = structlog.get_logger(__name__)

#: A first start may fetch an environment or data; later starts do not.
MAXIMUM_START_SECONDS = 30.0

Handler = Callable[[Job, Generation, Mapping[str, Any], Cluster, datetime], None]


_GENERATION = PreparedRows(
    lambda job_id, number: Generation.objects.select_related("master_server").filter(
        job=job_id, number=number
    )
)
_JOB = PreparedRows(
    lambda job_id: Job.objects.select_related("checkpoint", "curve", "project", "owner").filter(pk=job_id)
)


def apply_event(agent: Agent, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime) -> None:
    """Apply one well-formed event. The caller holds the cluster's row.

    Raises:
        RefusedEvent: the event belongs to work of another server, or its content is impossible.
    """
    whose = event["rank"] if event["kind"] in _OF_ANY_RANK else 0
    problem = OwnWork(agent.server_id, [event["job"]]).problem(event, rank=whose)
    if problem is not None:
        raise RefusedEvent(problem)
    generation = _GENERATION.get(event["job"], event["generation"])
    job = _JOB.get(generation.job_id)
    generation.job = job
    iteration = event.get("iteration") or 0
    if iteration > job.max_iterations:
        raise RefusedEvent(f"iteration: {iteration} of a job that has {job.max_iterations}")
    HANDLERS[event["kind"]](job, generation, event, cluster, happened_at)


def _stored_at(job: Job, key: str, told: str) -> str:
    """Return the address of a job's file in the platform's own store, whatever address the agent reports.

    Agents and the control plane open these addresses with their own rights, so no reported address is used.
    """
    uri = f"{settings.CHECKPOINT_URL.rstrip('/')}/jobs/{job.pk}/{key}"
    if told.removeprefix("file://") != uri.removeprefix("file://"):
        log.warning("an agent keeps a file elsewhere: is its checkpoint_url right?", told=told, expected=uri)
    return uri


def _pause_seconds(generation: Generation, told_seconds: float) -> float:
    """Return the reported cost of a change, at most the time since the change was decided."""
    since = (timezone.now() - generation.created_at).total_seconds()
    return min(told_seconds, max(0.0, since))


def _first_iteration(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    if generation.purpose != Purpose.TRAINING or job.finished():
        return
    note_pause(generation, event, _pause_seconds(generation, event["pause_seconds"]))
    became_live(job, generation, event["iteration"], cluster)
    went_back(job, event["iteration"])
    tell_pause(job, generation)
    advance_recoveries(cluster, [job.pk])


def _shard_stored(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    iteration, rank = event["iteration"], event["rank"]
    folder = f"checkpoints/{generation.number}-{iteration}"
    checkpoint = take_shard(
        job,
        generation,
        rank=rank,
        iteration=iteration,
        folder=_stored_at(job, f"{folder}/{rank}.pt", event["uri"]).removesuffix(f"/{rank}.pt"),
        size_bytes=event["bytes"],
        sha256=event["sha256"],
        reason=event["reason"],
        store_seconds=event["store_seconds"],
    )
    _measured_storing(generation, event)
    if checkpoint is not None:
        _point_complete(job, generation, checkpoint)
    advance(job, cluster)


def _measured_storing(generation: Generation, event: Mapping[str, Any]) -> None:
    """Store in the curve how long storing a state takes, scaled as if one worker stored all of it.

    A larger time counts at once, a smaller one gradually: an outage of the store is no property of the
    function.
    """
    if generation.curve is None or event["copy_seconds"] is None or event["writing_seconds"] is None:
        return
    whole = generation.world_size
    seen = {
        "copy_seconds": event["copy_seconds"] * whole,
        "storing_seconds": (event["writing_seconds"] + event["store_seconds"]) * whole,
    }
    curve = ScalingCurve.objects.select_for_update().get(pk=generation.curve.pk)
    for name, value in seen.items():
        setattr(curve, name, remembered(getattr(curve, name), min(value, LONGEST_PAUSE_SECONDS)))
    curve.save(update_fields=list(seen))


def _state_seen(curve: ScalingCurve, size_bytes: int) -> None:
    """Keep the largest state size seen; the next job reserves that much memory for its copies."""
    ScalingCurve.objects.filter(pk=curve.pk, state_bytes__lt=size_bytes).update(state_bytes=size_bytes)


def _point_complete(job: Job, generation: Generation, checkpoint: Checkpoint) -> None:
    """Make a complete checkpoint the job's newest, unless a newer one is known."""
    iteration = checkpoint.iteration
    if generation.curve is not None:
        _state_seen(generation.curve, checkpoint.size_bytes)
    # The pointer only moves forward. A replaced generation moves it at most to where its successor began.
    current = job.checkpoint
    newer = current is None or (checkpoint.iteration, checkpoint.generation) > (
        current.iteration,
        current.generation,
    )
    overtaken = generation.state == GenerationState.RETIRED and generation.is_repeated_from(iteration)
    if newer and not overtaken and not job.finished():
        Job.objects.filter(pk=job.pk, checkpoint=current).update(checkpoint=checkpoint)
        job.checkpoint = checkpoint
        record(
            job,
            JobEventKind.CHECKPOINT,
            f"State at iteration {iteration} is stored durably.",
            generation=generation.number,
        )
    if generation.state == GenerationState.LIVE and job.iterations_done < iteration:
        job.iterations_done = iteration
        job.save(update_fields=["iterations_done"])


def _profile_level(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    curve = generation.measured_curve()
    if curve is None or generation.purpose != Purpose.PROFILING:
        return
    levels = (generation.profile or {}).get("levels", [])
    if event["gpus"] not in levels:
        raise RefusedEvent(f"gpus: {event['gpus']} is none of the levels to be measured, {levels}")
    speed = event["iterations_per_second"]
    train_seconds = event["train_seconds"]
    # Cost of a change to new GPUs until running jobs show it: the start time of this measurement.
    began = generation.held_at, generation.live_at
    start_seconds = (began[1] - began[0]).total_seconds() if began[0] and began[1] else 0.0
    peak = event["host_memory_bytes"]
    known = CurveLevel.objects.filter(curve=curve, gpus=event["gpus"]).first()
    level, _ = CurveLevel.objects.update_or_create(
        curve=curve,
        gpus=event["gpus"],
        defaults={
            "iterations_per_second": speed,
            "profiled_iterations_per_second": speed,
            "train_seconds": train_seconds,
            "profiled_train_seconds": train_seconds,
            "pause_seconds": max(
                _pause_seconds(generation, event["pause_seconds"]),
                min(start_seconds, MAXIMUM_START_SECONDS),
                1.0,
            ),
            "memory_bytes": event["memory_bytes"],
            "host_memory_bytes": max(peak, 0 if known is None else known.host_memory_bytes),
            "reserved_memory_bytes": (
                to_reserve(peak)
                if known is None
                else raised(known, peak, smallest_share(cluster, curve.gpu_kind))
            ),
            "overrun": event["overrun"],
            "source": "profiled",
            "measured_at": timezone.now(),
        },
    )
    sentence = f"{event['gpus']} GPUs: {speed:.3g} iterations a second."
    if peak:
        sentence += f" A worker took {memory_text(peak)} of host memory at most."
    if event["state_bytes"]:
        _state_seen(curve, min(event["state_bytes"], memory_of_all(generation)))
    if level.void:
        sentence += (
            f" The machine was {100 * event['overrun']:.0f} % slower than the emulated device: void as a "
            "measurement of that device."
        )
    else:
        level_measured(job, generation, event["gpus"], speed)
    record(job, JobEventKind.PROFILED, sentence, gpus=event["gpus"])


def _profile_done(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    curve = generation.measured_curve()
    if (
        curve is None
        or generation.purpose != Purpose.PROFILING
        or generation.state == GenerationState.RETIRED
    ):
        return
    retire(generation, RetireReason.MEASURED, str(event.get("reason")))
    measured = CurveLevel.objects.filter(curve=curve).exists()
    top = (generation.profile or {}).get("levels", [0])[-1]
    declared = worker_counts_of(job.function_version, curve, job.global_batch_size)
    reached = max(measurable_levels(job.global_batch_size, job.global_batch_size * 2, declared), default=0)
    complete = event["reason"] == "no_gain" or (event["reason"] == "all_levels" and top >= reached)
    ScalingCurve.objects.filter(pk=curve.pk).update(
        state=CurveState.READY if measured else CurveState.FAILED,
        complete=complete,
        failure="" if measured else f"no level could be measured ({event.get('reason')})",
        measured_at=timezone.now(),
    )
    Job.objects.filter(curve=curve, awaits_levels=True).update(awaits_levels=False)
    if job.state == JobState.DECLINED and measured:
        known = gpus_text(max(curve.levels.values_list("gpus", flat=True)))
        record(
            job,
            JobEventKind.MEASURED_SINCE,
            f"Its speed is now known on up to {known}; a new submission is decided with that.",
        )
    planning_fact_changed(cluster)
    wake("plan", trigger=f"profile of {job.pk} is ready")


def _completed(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    if job.finished() or generation.purpose != Purpose.TRAINING:
        return
    if generation.state not in (GenerationState.LIVE, GenerationState.HANDOVER, GenerationState.PREPARING):
        return
    now = timezone.now()
    for artifact in event["artifacts"]:
        key = f"artifacts/{generation.number}/{artifact['name']}"
        Artifact.objects.update_or_create(
            job=job,
            name=artifact["name"],
            defaults={
                "uri": _stored_at(job, key, artifact["uri"]),
                "size_bytes": artifact["bytes"],
                "sha256": artifact["sha256"],
            },
        )
    let_go(job, "completed")
    job.iterations_done = event["iteration"]
    job.final_metrics = event["metrics"]
    job.sample_order_digest = event["sample_order_digest"]
    if job.state in (JobState.ADMITTED, JobState.SUSPENDED):
        # The job finished before its first iteration was reported.
        job.state = JobState.RUNNING
        job.started_at = job.started_at or now
    score_promise(job, now)
    job.save()
    slack = ""
    if job.deadline_at is not None:
        seconds = (job.deadline_at - now).total_seconds()
        slack = f", {duration_text(abs(seconds))} {'before' if seconds >= 0 else 'after'} its deadline"
    move(
        job,
        JobState.COMPLETED,
        f"Completed at iteration {job.iterations_done} ({event.get('reason')}){slack}.",
    )
    if job.curve is not None:
        # An outage of the store may have lasted hours and is no property of the function.
        seconds = min(event["store_seconds"], LONGEST_PAUSE_SECONDS)
        ScalingCurve.objects.filter(pk=job.curve.pk, finishing_seconds__lt=seconds).update(
            finishing_seconds=seconds
        )
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} completed")


def _failed(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    timed_out = event["reason"] == RetireReason.MEASURING_TIMEOUT
    was_profiling = generation.purpose == Purpose.PROFILING and (
        generation.state != GenerationState.RETIRED
        # Earlier in the same report, the worker was listed as gone.
        or (timed_out and generation.retired_because != RetireReason.MEASURED)
    )
    if was_profiling and timed_out and generation.state == GenerationState.RETIRED:
        generation.retired_because = RetireReason.MEASURING_TIMEOUT
        generation.retire_reason = event["message"][:300]
        generation.save(update_fields=["retired_because", "retire_reason"])
    if (
        generation.purpose == Purpose.PROFILING
        and generation.retire_reason == WORKER_GONE
        and event["reason"] != PEER_LOST
    ):
        # The event names the reason for the worker's end; those that lost it know none.
        generation.retire_reason = f"{event['reason']}: {event['message']}"[:300]
        generation.save(update_fields=["retire_reason"])
    curve = generation.measured_curve()
    measuring = generation.purpose == Purpose.PROFILING and job.may_be_measured()
    if event["reason"] == MEMORY_EXCEEDED and measuring:
        # This holds even if the worker was missed before it reported the reason.
        level_did_not_fit(job, generation, curve, event["message"][:2000], cluster)
        return
    if event["reason"] == PLAN_REFUSED:
        could_not_follow(job, generation, event["message"])
    message = event["message"][:2000]
    diverged = event["reason"] == NONFINITE and not job.finished()
    good = last_good_state(job, event["iteration"] or 0) if diverged else None
    if diverged:
        message += f". {name_state(good)}"
    fault = Fail(event["reason"], message, event["traceback"])
    fail_worker(job, generation, fault, cluster, reached=event["iteration"] or 0)
    if diverged and job.state == JobState.FAILED:
        job.checkpoint = good
        job.save(update_fields=["checkpoint"])
    if was_profiling and curve is not None and job.may_be_measured():
        measuring_ended(curve)


def _copy_traffic(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store how the generation sends copies of its recovery points, and how old these get."""
    if generation.purpose == Purpose.TRAINING:
        note_point_age(job, generation, event, happened_at)
        generation.copy_traffic = {name: event[name] for name in CopyTraffic.model_fields}
        generation.save(update_fields=["copy_traffic"])


def _communication_profile(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store measured gradients. Plans are made from them in the background."""
    note_profile(job, generation, event)


def _communication_window(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store recent measurements of the generation's communication plan."""
    note_window(generation, event, happened_at)


def _mixture(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store the sizes of a model with experts that is about to be measured."""
    note_mixture(job, generation, event, cluster)


def _expert_routing(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store where the tokens of the job's mixture-of-experts layers were sent recently."""
    note_routing(job, generation, event, happened_at)


def _nonfinite(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store that losses or weights became NaN or infinite, or finite again."""
    if generation.purpose == Purpose.TRAINING:
        note_nonfinite(job, generation, event)


def _refused(
    job: Job, generation: Generation, event: Mapping[str, Any], cluster: Cluster, happened_at: datetime
) -> None:
    """Store that the agent refused a message or a file of a worker."""
    note(
        job.pk,
        f"Rank {event['rank']} of generation {generation.number}: {event['what']} refused: {event['reason']}",
    )


#: Events of any rank; the other kinds come from rank 0 only.
_OF_ANY_RANK = ("failed", "refused", "shard_stored")
HANDLERS: dict[str, Handler] = {
    "first_iteration": _first_iteration,
    "shard_stored": _shard_stored,
    "profile_level": _profile_level,
    "profile_done": _profile_done,
    "completed": _completed,
    "copy_traffic": _copy_traffic,
    "communication_profile": _communication_profile,
    "communication_window": _communication_window,
    "mixture": _mixture,
    "expert_routing": _expert_routing,
    "nonfinite": _nonfinite,
    "failed": _failed,
    "refused": _refused,
}
