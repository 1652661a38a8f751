"""Defects that are planted in the control plane of a platform that faults befall, to see that they are found.

`python -m tests.faults --plant NAME` has the control plane's processes load `tests.faults.planted_settings`
instead of the usual settings. Nothing of the platform knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.apps import AppConfig

VARIABLE = "PUNCTUAL_PLANTED_DEFECT"
#: By how much a silence seems longer than it is.
FENCE_FACTOR = 3.0


def environment(name: str) -> dict[str, str]:
    """What the control plane's processes need in their environment for this defect; empty for none."""
    if not name:
        return {}
    return {VARIABLE: name, "DJANGO_SETTINGS_MODULE": "tests.faults.planted_settings"}


class PlantedDefect(AppConfig):
    """Puts the defect that the environment names into a process, once all models are there."""

    name = "tests.faults"
    label = "planted_defect"

    def ready(self) -> None:
        DEFECTS[os.environ[VARIABLE]]()


def _charge_no_pause() -> None:
    """Promises keep nothing for a change of GPUs, nor for the restart after a lost server."""
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
    """Leases are looked at as if silences were longer: a server is given up while its agent's lease holds."""
    from cluster.models import Agent

    silent_seconds = Agent.silent_seconds

    def longer(self: Agent, now: Any) -> float:
        return FENCE_FACTOR * silent_seconds(self, now)

    setattr(Agent, "silent_seconds", longer)  # noqa: B010 - mypy lets no method be assigned


#: Each by its name on the command line.
DEFECTS: dict[str, Callable[[], None]] = {
    "no-pause-charged": _charge_no_pause,
    "short-fence": _fence_too_early,
}
