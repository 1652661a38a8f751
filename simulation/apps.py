"""The simulator as a Django app, with `manage.py simulate`."""

from __future__ import annotations

from django.apps import AppConfig


class SimulationConfig(AppConfig):
    """The decision core on a virtual clock."""

    name = "simulation"
    verbose_name = "Simulation"
