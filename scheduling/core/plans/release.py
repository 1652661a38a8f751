"""Until when GPUs that nobody may be planned on stay taken, at the latest (docs/protocols.md 1.1).

Every step of a generation has a time-out after which the platform ends it, and what it ended is gone a
bounded time later. A promise rests on these bounds, never on how long a step usually takes. All times are on
the snapshot's axis, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

#: From an agent's being told to end workers until they are gone: the grace that they get and the kill.
KILL_SECONDS = 5.0
#: Nobody knows: as good as for ever, and still a number that slots can be counted in.
UNKNOWN_SECONDS = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class ReleaseBounds:
    """The platform's time-outs that say when GPUs come free.

    ``report_seconds``: between two reports of an agent. ``silence_seconds``: from an agent's last report
    until its server is given up, when its workers have ended themselves. ``suspend_seconds`` and
    ``handover_seconds``: time-outs of these steps. ``measuring_seconds``: the longest that workers measure
    before their agent kills them.
    """

    report_seconds: float
    silence_seconds: float
    suspend_seconds: float
    handover_seconds: float
    measuring_seconds: float

    @property
    def confirming_seconds(self) -> float:
        """From a generation's being told to stop until its GPUs are confirmed free, while its agents are
        heard."""
        return 2 * self.report_seconds + KILL_SECONDS

    @property
    def suspending_seconds(self) -> float:
        """From a generation's being told to suspend until its GPUs are confirmed free."""
        return self.suspend_seconds + self.confirming_seconds

    @property
    def measurement_seconds(self) -> float:
        """From a measurement's having its GPUs until they are confirmed free.

        Agents hear of it a report later at most, and kill it by their own clock.
        """
        return self.report_seconds + self.measuring_seconds + self.confirming_seconds


def suspended_by(step_ends_at: float | None, now: float, bounds: ReleaseBounds) -> float:
    """When a generation that writes its state down has left its GPUs. ``step_ends_at``: when that step is
    ended."""
    ends_at = now + bounds.suspend_seconds if step_ends_at is None else max(now, step_ends_at)
    return ends_at + bounds.confirming_seconds


def handed_over_and_suspended_by(step_ends_at: float | None, now: float, bounds: ReleaseBounds) -> float:
    """The same while it is in a hand-over, which is let finish first. ``step_ends_at``: when the hand-over is
    ended."""
    ends_at = now + bounds.handover_seconds if step_ends_at is None else max(now, step_ends_at)
    return ends_at + bounds.suspending_seconds


def measured_by(
    created_at: float, held_at: float | None, now: float, bounds: ReleaseBounds, *, waits: bool
) -> float:
    """When a measurement has left its GPUs. ``waits``: jobs still have to leave these GPUs to it."""
    if held_at is not None:
        return max(now + bounds.confirming_seconds, held_at + bounds.measurement_seconds)
    begins_at = max(now, created_at + bounds.suspending_seconds) if waits else now
    return begins_at + bounds.measurement_seconds


def confirmed_by(told_at: float, now: float, bounds: ReleaseBounds) -> float | None:
    """When GPUs that an agent was told to leave are confirmed free; None while that is within the usual time.

    A plan may give them away meanwhile: whoever gets them waits for them as in any change. Once the agent is
    overdue, it is waited for as long as a silent one: nothing better is known of it.
    """
    if now <= told_at + bounds.confirming_seconds:
        return None
    return now + bounds.silence_seconds


def given_up_by(last_report_at: float, hold_until: float | None, now: float, bounds: ReleaseBounds) -> float:
    """When a silent server is given up, or has been heard again. ``hold_until``: no server is given up
    before."""
    return max(now, last_report_at + bounds.silence_seconds, hold_until or now) + bounds.report_seconds
