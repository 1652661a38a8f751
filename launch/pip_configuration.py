"""Passes pip's configuration to uv, which ignores it.

Runs before anything is installed (`launch/environment.py` runs it), so it uses only the standard library and
syntax that an older Python can at least parse.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def uv_environment() -> dict[str, str]:
    """Return variables that make uv use pip's indexes, wheel folders, certificates and timeout.

    Variables of uv that are already set take precedence. pip's environment variables take precedence over its
    files, as in pip.
    """
    configured = _pip_settings()
    variables: dict[str, str] = {}
    folders = [place for place in configured.get("find-links", "").split() if _exists(place)]
    if folders:
        variables["UV_FIND_LINKS"] = ",".join(folders)
    if configured.get("index-url"):
        variables["UV_DEFAULT_INDEX"] = configured["index-url"]
    extra = [place for place in configured.get("extra-index-url", "").split() if _exists(place)]
    if extra:
        variables["UV_INDEX"] = " ".join(extra)
        # pip treats all indexes alike; uv would stop at the first one that has the name.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if configured.get("cert"):
        variables["SSL_CERT_FILE"] = configured["cert"]
    if configured.get("default-timeout", "").isdigit():
        variables["UV_HTTP_TIMEOUT"] = configured["default-timeout"]
    for name, value in os.environ.items():
        if name in variables or name.startswith("UV_"):
            variables[name] = value
    return variables


def local_places(variables: Mapping[str, str]) -> list[str]:
    """Return the local files and folders that such variables name, which an installer in a container must
    see."""
    places = set()
    for value in variables.values():
        for word in value.replace(",", " ").split():
            # The pages of an index in a folder refer to files beside it.
            places.add(os.path.dirname(word[len("file://") :]) if word.startswith("file://") else word)
    return sorted(place for place in places if place.startswith("/") and os.path.exists(place))


def _exists(place: str) -> bool:
    """Return whether a place exists: uv fails on a missing folder, while pip only warns."""
    if place.startswith(("http://", "https://")):
        return True
    return os.path.isdir(place.removeprefix("file://"))


def _pip_settings() -> dict[str, str]:
    """Return pip's settings by name, from its files and its environment variables."""
    settings: dict[str, str] = {}
    # The virtual environment has no pip; its base interpreter may have one.
    python = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run(
        [python, "-m", "pip", "config", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        name, found, value = line.partition("=")
        if found and name.startswith(("global.", "install.")):
            # Printed as a Python literal; a list of several places has escaped line breaks.
            settings[name.split(".", 1)[1]] = value.strip().strip("'\"").replace("\\n", " ").strip()
    for name in ("find-links", "index-url", "extra-index-url", "cert", "default-timeout"):
        override = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        if override:
            settings[name] = override
    return settings
