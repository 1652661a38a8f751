"""Results of lending in numbers: usage of both clusters, loans, and costs of reclaims (Lyra section 3.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduling.core.question.snapshot import FloatArray
from simulation.loans import LoanHistory, ReclaimRecord
from simulation.outcome import RunOutcome
from simulation.reports import measures


def lending_summary(outcome: RunOutcome) -> dict[str, Any]:
    """Return the figures of a run's loans, as `summary` describes them; without loans, None, or 0 for
    counts."""
    loans = outcome.loans
    facts: dict[str, Any] = {
        "training_gpu_usage": training_usage(outcome),
        "owned_gpu_usage": None,
        "on_loan_gpu_usage": None,
        "overall_gpu_usage": None,
        "loan_operations": 0,
        "servers_on_loan_mean": None,
        "servers_on_loan_max": 0,
        "shortfall_servers_max": outcome.counts.get("shortfall_servers_max", 0),
        "shortfall_periods": 0,
        **_reclaims(()),
    }
    if loans is None or not loans.time.size:
        return facts
    arriving = while_jobs_arrive(outcome, loans)
    owned, lent, overall = usages(loans)
    lending = np.diff(loans.on_loan, prepend=0) > 0
    return facts | {
        "owned_gpu_usage": _mean(owned[arriving]),
        "on_loan_gpu_usage": _ratio(
            loans.lent_gpus_busy[arriving].sum(),
            loans.gpus_per_server * loans.on_loan_before[arriving].sum(),
        ),
        "overall_gpu_usage": _mean(overall[arriving]),
        "loan_operations": int(lending.sum()),
        "servers_on_loan_mean": _mean(loans.on_loan[arriving].astype(np.float64)),
        "servers_on_loan_max": int(loans.on_loan.max()),
        "shortfall_servers_max": int(loans.shortfall.max()),
        "shortfall_periods": int((loans.shortfall > 0).sum()),
        **_reclaims(loans.reclaims, loans.gpus_per_server),
    }


def usages(loans: LoanHistory) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the shares of GPUs in use at the end of each period: owned ones, those on loan (NaN without
    any), and those of both clusters.

    The last one counts GPUs that serve requests as in use, and every GPU of the inference cluster once.
    """
    lent_gpus = loans.on_loan_before * loans.gpus_per_server
    inference = loans.servers * loans.gpus_per_server
    busy = loans.owned_gpus_busy + loans.lent_gpus_busy
    owned = loans.owned_gpus_busy / max(1, loans.owned_gpus)
    lent = np.divide(loans.lent_gpus_busy, lent_gpus, out=np.full(busy.size, np.nan), where=lent_gpus > 0)
    return owned, lent, (busy + loans.usage * inference) / max(1, loans.owned_gpus + inference)


def while_jobs_arrive(outcome: RunOutcome, loans: LoanHistory) -> np.ndarray:
    """Mark the periods that end before the last submission: after that the cluster only empties."""
    until = outcome.jobs.submitted_at.max(initial=0.0)
    arriving = loans.time <= until
    return arriving if arriving.any() else np.ones_like(arriving)


def training_usage(outcome: RunOutcome) -> float | None:
    """Return the share of the GPUs available to training, on loan or owned, that jobs hold until the last
    submission (spec A16)."""
    cluster, jobs = outcome.cluster, outcome.jobs
    if not cluster.time.size or not jobs.submitted_at.size:
        return None
    until = float(jobs.submitted_at.max())
    seconds = np.clip(until - cluster.time, 0.0, measures.span_seconds(outcome))
    return _ratio((measures.gpus_used(cluster) * seconds).sum(), (cluster.gpus * seconds).sum())


def _reclaims(reclaims: tuple[ReclaimRecord, ...], gpus_per_server: int = 8) -> dict[str, Any]:
    wanted = sum(one.wanted for one in reclaims)
    shares = [one.preempted / one.running for one in reclaims if one.running]
    return {
        "reclaim_operations": len(reclaims),
        "reclaimed_servers": sum(one.returned for one in reclaims),
        "reclaim_preemptions": sum(one.preempted for one in reclaims),
        "reclaim_preempted_share": _mean(np.array(shares)),
        "reclaim_collateral": _ratio(sum(one.collateral_gpus for one in reclaims), wanted * gpus_per_server),
        "reclaim_idle_share": _ratio(sum(one.idle for one in reclaims), wanted),
        "reclaim_flexible_share": _ratio(sum(one.flexible for one in reclaims), wanted),
        "reclaim_ahead_share": _ratio(sum(one.ahead for one in reclaims), len(reclaims)),
    }


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if values.size else None


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None
