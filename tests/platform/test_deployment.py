"""Django's deployment check has no finding, apart from two choices that are left to the site."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from config.public_addresses import with_host_of
from launch.folders import PROJECT
from punctual.protocol.staged import STAGED

#: Whether subdomains use HTTPS too, and whether browsers should preload this.
CHOICES_OF_THE_SITE = {"security.W005", "security.W021"}


def test_deployment_settings_pass_djangos_checks():
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


SETTINGS = {"DJANGO_SETTINGS_MODULE": "config.settings"}
COOKIES = """
from django.conf import settings
import json
print(json.dumps({
    cookie: [getattr(settings, f"{cookie}_COOKIE_{part}")
             for part in ("NAME", "SECURE", "HTTPONLY", "SAMESITE", "PATH", "DOMAIN")]
    for cookie in ("SESSION", "CSRF")
}))
"""


@pytest.mark.parametrize(
    ("https", "session", "csrf"),
    [
        # The prefix: a browser accepts the cookie only from this host, over TLS, for the whole host. A link
        # from elsewhere may then lead into the dashboard.
        (
            "true",
            ["__Host-sessionid", True, True, "Lax", "/", None],
            ["__Host-csrftoken", True, True, "Lax", "/", None],
        ),
        # Over plain HTTP the prefix is refused, and other ports of the host share the cookies.
        (
            "false",
            ["sessionid", False, True, "Strict", "/", None],
            ["csrftoken", False, True, "Strict", "/", None],
        ),
    ],
)
def test_cookies_are_as_restricted_as_browsers_allow(
    https: str, session: list[object], csrf: list[object]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COOKIES],
        cwd=PROJECT,
        env=os.environ | SETTINGS | {"HTTPS": https, "DEBUG": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"SESSION": session, "CSRF": csrf}


def test_serving_without_a_secret_key_is_refused():
    environment = {name: value for name, value in os.environ.items() if name != "SECRET_KEY"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from django.conf import settings; print('serves with', settings.SECRET_KEY)",
        ],
        cwd=PROJECT,
        env=environment | SETTINGS | {"PUNCTUAL_SERVING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "serves" not in done.stdout
    assert "SECRET_KEY" in done.stderr


def example_environment() -> dict[str, str]:
    """The variables of the `.env` that the page on images gives as an example."""
    text = (PROJECT / "docker" / "README.md").read_text()
    match = re.search(r"cat > docker/\.env <<END\n(.*?)\n\s*END", text, re.DOTALL)
    assert match is not None
    lines = textwrap.dedent(match[1]).splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("module", "address"),
    [("config.settings_agents", "AGENT_URL"), ("config.settings_streams", "STREAM_URL")],
)
def test_each_process_accepts_the_host_of_its_example_address(module, address):
    example = example_environment()
    host = example[address].removeprefix("https://")
    environment = os.environ | example | {"DJANGO_SETTINGS_MODULE": module}
    code = (
        "from django.test import RequestFactory;"
        f"print(RequestFactory().get('/', HTTP_HOST='{host}').get_host())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == host, done.stderr


def test_the_build_context_contains_every_copied_folder():
    """New packages are easily forgotten in the list of the build context."""
    seen = [
        line.removeprefix("!")
        for line in (PROJECT / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    ]
    copied = re.findall(r"^COPY (.+) \S+$", (PROJECT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert sources
    for source in sources:
        assert (PROJECT / source).exists(), source
        assert any(fnmatch.fnmatch(source.split("/")[0], name) for name in seen), f"{source} is not handed in"


def test_the_agents_image_contains_the_staged_runtime():
    agent = (PROJECT / "docker" / "Dockerfile").read_text().split(" AS agent\n")[1].split("\nFROM ")[0]
    copied = {line.split()[1] for line in agent.splitlines() if line.startswith("COPY")}
    assert set(STAGED) <= copied


@pytest.mark.parametrize(
    ("url", "added"),
    [
        ("https://punctual.example:8000/x", ["punctual.example"]),
        ("http://[::1]:8000", ["[::1]"]),
        ("https://known.example", []),
        ("", []),
    ],
)
def test_the_host_of_a_url_is_added_once(url: str, added: list[str]):
    assert with_host_of(url, ["known.example"]) == ["known.example", *added]
