"""Defects planted in the control plane of a platform under faults, to verify that they are found.

`python -m tests.faults --plant NAME` has the control plane's processes load `tests.faults.planted_settings`
instead of the usual settings. The platform itself contains no code for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.apps import AppConfig

VARIABLE = "PUNCTUAL_PLANTED_DEFECT"
#: The factor by which silences appear longer.
FENCE_FACTOR = 3.0


def environment(name: str) -> dict[str, str]:
    """Return the environment variables of the control plane's processes for this defect; empty for none."""
    if not name:
        return {}
    return {VARIABLE: name, "DJANGO_SETTINGS_MODULE": "tests.faults.planted_settings"}


class PlantedDefect(AppConfig):
    """Installs the defect that the environment names in a process, once all models are loaded."""

    name = "tests.faults"
    label = "planted_defect"

    def ready(self) -> None:
        DEFECTS[os.environ[VARIABLE]]()


def _charge_no_pause() -> None:
    """Make promises keep no slack for a change of GPUs, nor for the restart after a lost server."""
    from scheduling.core.question.curves import curve_from_measurements
    from scheduling.services.generations import failure_charges
    from scheduling.services.snapshots import jobs_of_pool, planner_settings

    charges = failure_charges.FailureCharges
    computed = charges._computed

    def without_slack(self: Any, *facts: Any) -> Any:
        return replace(computed(self, *facts), slack_seconds=0.0)

    def without_pauses(measured: Any, **facts: Any) -> Any:
        return curve_from_measurements(measured, **{**facts, "pause_seconds": lambda gpus: 0.0})

    patched: list[tuple[Any, str, Any]] = [
        (charges, "_computed", without_slack),
        (jobs_of_pool, "curve_from_measurements", without_pauses),
        (planner_settings, "change_slack_seconds", lambda cluster, now: 0.0),
    ]
    for owner, name, instead in patched:
        setattr(owner, name, instead)


def _fence_too_early() -> None:
    """Check leases as if silences were longer, so that a server is given up while its agent's lease holds."""
    from cluster.models import Agent

    silent_seconds = Agent.silent_seconds

    def longer(self: Agent, now: Any) -> float:
        return FENCE_FACTOR * silent_seconds(self, now)

    setattr(Agent, "silent_seconds", longer)  # noqa: B010 - mypy lets no method be assigned


#: The defects by their names on the command line.
DEFECTS: dict[str, Callable[[], None]] = {
    "no-pause-charged": _charge_no_pause,
    "short-fence": _fence_too_early,
}
