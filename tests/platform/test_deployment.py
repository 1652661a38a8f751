"""Django's own check of a deployment finds nothing, apart from two choices that are the site's."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from launch.folders import PROJECT

#: Whether subdomains speak HTTPS too, and whether browsers should know before the first visit.
CHOICES_OF_THE_SITE = {"security.W005", "security.W021"}


def test_settings_of_a_deployment_raise_no_finding():
    environment = os.environ | {"HTTPS": "true", "DEBUG": "false"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\((\w+\.\w+)\)", done.stderr)) <= CHOICES_OF_THE_SITE, done.stderr


def test_serving_without_a_secret_key_is_refused():
    environment = {name: value for name, value in os.environ.items() if name != "SECRET_KEY"}
    done = subprocess.run(
        [
            sys.executable,
            "manage.py",
            "shell",
            "-c",
            "from django.conf import settings; print('serves with', settings.SECRET_KEY)",
        ],
        cwd=PROJECT,
        env=environment | {"PUNCTUAL_SERVING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "serves" not in done.stdout
    assert "SECRET_KEY" in done.stderr
