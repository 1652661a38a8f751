"""The plausible progress of a job: what user code reports, limited by what its speed permits.

User code can reach the socket on which its worker reports. If a job claimed to be nearly done, its GPUs would
be promised to other jobs, which would miss their deadlines when it trains on.
"""

from __future__ import annotations

from datetime import datetime

from scheduling.choices import JobState
from scheduling.core.question.curves import throughput_at
from scheduling.core.question.snapshot import ScalingCurve
from scheduling.services.rows.claims import PoolGeneration
from scheduling.services.rows.planned_jobs import PlannedJob

#: Factor by which a job may be faster than its curve; reports raise the curve within a minute.
FASTER = 1.25
#: Reports come about once a second; progress is extrapolated from the last one for at most this time.
EXTRAPOLATE_SECONDS = 3.0
#: Tolerance in iterations: those between two reports, and errors of reading clocks.
UNCOUNTED = 10.0


def believed_iterations(
    row: PlannedJob,
    curve: ScalingCurve,
    *,
    margin: float,
    live: PoolGeneration | None,
    gpus: int,
    now: datetime,
    attained_gpu_seconds: float,
) -> float:
    """Return the iterations that a job has done, for planning: the reported ones and those since, for a
    promised job at most the possible ones.

    Possible is what the GPU time that it has ever held permits on its most efficient level, and since the
    ``live`` generation began what its ``gpus`` permit. A job without a promise is believed: no promise
    depends on the GPUs that it will leave.

    Args:
        curve: lowered by ``margin``, as promises use it.
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


def _since_report(row: PlannedJob, live: PoolGeneration | None, now: datetime) -> float:
    if live is None or row.iterations_reported_at is None or row.state != JobState.RUNNING:
        return 0.0
    age = (now - row.iterations_reported_at).total_seconds()
    return min(max(age, 0.0), EXTRAPOLATE_SECONDS) * row.iterations_per_second
