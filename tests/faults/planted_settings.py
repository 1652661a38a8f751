"""The platform's settings with a planted defect (`tests/faults/planted.py`)."""

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS as USUAL_APPS

INSTALLED_APPS = [*USUAL_APPS, "tests.faults.planted.PlantedDefect"]
