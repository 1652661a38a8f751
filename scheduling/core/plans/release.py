"""Upper bounds for when blocked GPUs come free (docs/protocols.md 1.1).

Every step of a generation has a time-out after which the platform ends the step. Its workers are gone a
bounded time later. A promise rests on these bounds, never on the usual duration of a step. All times are on
the snapshot's axis, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds from the order to end workers until they are gone: their grace period and the kill.
KILL_SECONDS = 5.0
#: Stands for an unknown time: very long, yet finite, so that slots can be counted up to it.
UNKNOWN_SECONDS = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class ReleaseBounds:
    """The platform's time-outs that bound when GPUs come free. All are in seconds."""

    #: Between two reports of an agent.
    report_seconds: float
    #: From an agent's last report until its server is given up; its workers have ended themselves by then.
    silence_seconds: float
    #: Time-out of the step in which a generation suspends.
    suspend_seconds: float
    #: Time-out of the hand-over step.
    handover_seconds: float
    #: The longest measurement, after which the agent kills its workers.
    measuring_seconds: float

    @property
    def confirming_seconds(self) -> float:
        """From the order to stop a generation until its reporting agents confirm its GPUs free."""
        return 2 * self.report_seconds + KILL_SECONDS

    @property
    def suspending_seconds(self) -> float:
        """From the order to suspend a generation until its GPUs are confirmed free."""
        return self.suspend_seconds + self.confirming_seconds

    @property
    def measurement_seconds(self) -> float:
        """From the start of a measurement on its GPUs until they are confirmed free.

        Agents learn of the measurement one report later at most. They end it by their own clock.
        """
        return self.report_seconds + self.measuring_seconds + self.confirming_seconds


def suspended_by(step_ends_at: float | None, now: float, bounds: ReleaseBounds) -> float:
    """The latest time at which a suspending generation has left its GPUs.

    ``step_ends_at``: when the platform ends the suspend step; None if the step begins now.
    """
    ends_at = now + bounds.suspend_seconds if step_ends_at is None else max(now, step_ends_at)
    return ends_at + bounds.confirming_seconds


def handed_over_and_suspended_by(step_ends_at: float | None, now: float, bounds: ReleaseBounds) -> float:
    """The latest time at which a generation has left its GPUs if it ends a hand-over first, then suspends.

    ``step_ends_at``: when the platform ends the hand-over step; None if the step begins now.
    """
    ends_at = now + bounds.handover_seconds if step_ends_at is None else max(now, step_ends_at)
    return ends_at + bounds.suspending_seconds


def measured_by(
    created_at: float, held_at: float | None, now: float, bounds: ReleaseBounds, *, waits: bool
) -> float:
    """The latest time at which a measurement has left its GPUs.

    ``created_at``: when it was ordered. ``held_at``: when it got its GPUs, None if it has none yet.
    ``waits``: True if jobs must still leave these GPUs.
    """
    if held_at is not None:
        return max(now + bounds.confirming_seconds, held_at + bounds.measurement_seconds)
    begins_at = max(now, created_at + bounds.suspending_seconds) if waits else now
    return begins_at + bounds.measurement_seconds


def confirmed_by(told_at: float, now: float, bounds: ReleaseBounds) -> float | None:
    """The latest time at which GPUs that an agent was told to leave at ``told_at`` are confirmed free.

    None while the agent is not overdue: a plan may then give the GPUs to another job, which waits for them
    as in any change. An overdue agent is treated as a silent one.
    """
    if now <= told_at + bounds.confirming_seconds:
        return None
    return now + bounds.silence_seconds


def given_up_by(last_report_at: float, hold_until: float | None, now: float, bounds: ReleaseBounds) -> float:
    """The latest time at which a silent server is given up or has reported again.

    ``hold_until``: time before which no server is given up, or None.
    """
    return max(now, last_report_at + bounds.silence_seconds, hold_until or now) + bounds.report_seconds
