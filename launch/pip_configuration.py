"""Handing pip's configuration to uv, which ignores it.

Runs before anything is installed (`launch/environment.py` imports it), so it uses the standard library alone
and syntax that an older Python can at least read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def uv_environment() -> dict[str, str]:
    """Variables that make uv use pip's index, wheel folders, certificates and timeout.

    Variables of uv's own that are set already win. pip's environment variables win over its files, as with
    pip.
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
        # pip looks at all indexes alike; uv would stop at the first that knows the name.
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
    """The files and folders of this machine that such variables name: what an installer in a container needs
    to see."""
    places = set()
    for value in variables.values():
        for word in value.replace(",", " ").split():
            # The pages of an index that is a folder name files beside it.
            places.add(os.path.dirname(word[len("file://") :]) if word.startswith("file://") else word)
    return sorted(place for place in places if place.startswith("/") and os.path.exists(place))


def _exists(place: str) -> bool:
    """uv fails on a folder that is not there; pip only warns."""
    if place.startswith(("http://", "https://")):
        return True
    return os.path.isdir(place.removeprefix("file://"))


def _pip_settings() -> dict[str, str]:
    """pip's settings by name, from its files and its environment variables."""
    settings: dict[str, str] = {}
    # The virtual environment has no pip; the interpreter it was made from may.
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
            # Shown as a Python literal; a list of several places has escaped line breaks.
            settings[name.split(".", 1)[1]] = value.strip().strip("'\"").replace("\\n", " ").strip()
    for name in ("find-links", "index-url", "extra-index-url", "cert", "default-timeout"):
        override = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        if override:
            settings[name] = override
    return settings
