"""Replay of the live platform's recorded decisions from their recorded inputs (rule 1 of the design)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.core.question.decision import Decision
from scheduling.core.question.recording import unpack_snapshot
from simulation.policies import policy_named

REALLOCATION = "reallocation"
"""Kind of a decision that moves GPUs; the other kind only decides on newcomers."""


def replay(packed: bytes, *, policy: str, kind: str) -> Decision:
    """Return the decision of ``policy`` on a recorded snapshot.

    Raises ValueError if the bytes are no snapshot or the policy is unknown.
    """
    snapshot = unpack_snapshot(packed)
    chosen = policy_named(policy)
    return chosen.replan(snapshot) if kind == REALLOCATION else chosen.admit(snapshot)


def differences(summary: Mapping[str, Any], decision: Decision) -> list[str]:
    """Return a sentence for each difference of a replayed decision from its record."""
    replayed: dict[str, Any] = {
        "verdicts": {
            verdict.job_id: (verdict.admitted, verdict.promised, str(verdict.reason_code), verdict.reason)
            for verdict in decision.verdicts
        },
        "changes": [
            (change.job_id, str(change.kind), change.gpus_before, change.gpus_after, change.pause_seconds)
            for change in decision.changes
        ],
        "at_risk": list(decision.at_risk),
        "notes": list(decision.notes),
        "used_stored_plans": decision.used_stored_plans,
    }
    recorded: dict[str, Any] = {
        "verdicts": {
            verdict["job"]: (
                verdict["admitted"],
                verdict["promised"],
                verdict["reason_code"],
                verdict["reason"],
            )
            for verdict in summary["verdicts"]
        },
        "changes": [
            (
                change["job"],
                change["kind"],
                change["gpus_before"],
                change["gpus_after"],
                change["pause_seconds"],
            )
            for change in summary["changes"]
        ],
        "at_risk": summary["at_risk"],
        "notes": summary["notes"],
        "used_stored_plans": summary["used_stored_plans"],
    }
    return [
        f"{name}: recorded {recorded[name]}, replayed {replayed[name]}"
        for name in recorded
        if recorded[name] != replayed[name]
    ]
