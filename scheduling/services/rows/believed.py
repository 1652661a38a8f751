"""How far a job is believed to be: what user code says of its progress, as far as its speed allows it.

A job's code reaches the socket on which its worker reports. Who claims to be nearly done would have its GPUs
promised to others, who would miss their deadlines when it trains on.
"""

from __future__ import annotations

from datetime import datetime

from scheduling.choices import JobState
from scheduling.core.question.curves import throughput_at
from scheduling.core.question.snapshot import ScalingCurve
from scheduling.models import Generation, Job

#: By so much a job may be faster than its curve says: what it reports raises the curve within a minute.
FASTER = 1.25
#: Reports come about once a second; progress is carried forward from the last one for no longer than this.
EXTRAPOLATE_SECONDS = 3.0
#: Iterations between two reports, and those that a clock's reading is off.
UNCOUNTED = 10.0


def believed_iterations(
    row: Job,
    curve: ScalingCurve,
    *,
    margin: float,
    live: Generation | None,
    gpus: int,
    now: datetime,
    attained_gpu_seconds: float,
) -> float:
    """Iterations that a job has done, for planning: what was reported and has been done since; of a promised
    job no more than it can have done.

    It can have done what the GPU time that it has ever held allows on its most efficient level, and since the
    ``live`` generation began what its ``gpus`` allow. Jobs without a promise may be as far as they say:
    nobody is promised what they leave.

    Args:
        curve: lowered by ``margin``, as promises rest on it.
    """
    claimed = row.iterations_done + _since_report(row, live, now)
    if not row.promised or not curve.levels.size:
        return claimed
    faster = FASTER / (1.0 - margin)
    most_efficient = float((curve.throughput / curve.levels).max())
    possible = attained_gpu_seconds * most_efficient * faster
    rate = throughput_at(curve, gpus)
    if live is not None and live.live_at is not None and rate > 0.0:
        since = max(0.0, (now - live.live_at).total_seconds())
        possible = min(possible, live.start_iteration + since * rate * faster)
    return min(claimed, possible + UNCOUNTED)


def _since_report(row: Job, live: Generation | None, now: datetime) -> float:
    if live is None or row.iterations_reported_at is None or row.state != JobState.RUNNING:
        return 0.0
    age = (now - row.iterations_reported_at).total_seconds()
    return min(max(age, 0.0), EXTRAPOLATE_SECONDS) * row.iterations_per_second
