"""Documents and configuration of running Punctual agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from launch import services

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    PROJECT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
)
COLUMNS = 110
RECORDS = sorted(path for path in (PROJECT / "docs" / "decisions").glob("[0-9]*.md"))
#: Words of a decision record; more would be two decisions, or history.
MOST_WORDS = 400


def packages() -> set[str]:
    """Top-level Python packages of the product."""
    return {init.parent.name for init in PROJECT.glob("*/__init__.py")} - {"tests", "examples", "benchmarks"}


def test_every_package_is_under_the_import_contracts():
    configuration = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert set(configuration["tool"]["importlinter"]["root_packages"]) == packages()


def test_every_requirement_is_pinned_exactly():
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt")
        for line in (PROJECT / name).read_text().splitlines()
        if line and not line.startswith(("#", "-r"))
    ]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+", line)] == []


def test_the_constraints_agree_with_the_requirements():
    constraints = dict(line.split("==") for line in (PROJECT / "constraints.txt").read_text().split())
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (PROJECT / name).read_text().splitlines():
            if "==" in line and not line.startswith("#"):
                package, version = re.sub(r"\[.*\]", "", line).split("==")
                assert constraints[package.lower()] == version


@pytest.mark.parametrize("name", ["compose.yaml", "agent.compose.yaml"])
def test_compose_files_are_yaml_with_an_image_for_every_service(name):
    document = yaml.safe_load((PROJECT / "docker" / name).read_text())
    assert all(service.get("image") for service in document["services"].values())


def test_compose_serves_every_queue_that_the_supervisor_serves():
    document = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())
    commands = [service.get("command", []) for service in document["services"].values()]
    queues = {command[command.index("--queues") + 1] for command in commands if "--queues" in command}
    assert queues == set(services.CELERY_QUEUES)


def test_the_images_copy_only_existing_files():
    copied = re.findall(r"^COPY ([^\n]+) \S+$", (PROJECT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert sources
    assert [source for source in sources if not (PROJECT / source).exists()] == []


def test_every_package_of_the_control_plane_is_in_its_image():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    packages = settings["tool"]["importlinter"]["root_packages"]
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    target = re.search(r"AS control-plane\n(.*?)^FROM ", dockerfile, re.MULTILINE | re.DOTALL)
    assert target is not None
    assert set(packages) <= set(re.findall(r"^COPY (\w+) \1$", target[1], re.MULTILINE))


def test_the_image_contains_the_inference_emulators_imports():
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    target = re.search(r"AS control-plane\n(.*?)^FROM ", dockerfile, re.MULTILINE | re.DOTALL)
    assert target is not None
    copied = set(re.findall(r"^COPY (\w+) \1$", target[1], re.MULTILINE))
    code = (
        "import sys, workers.inference_emulator.__main__; print(*{name.split('.')[0] for name in "
        "sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert set(loaded.stdout.split()) & packages() <= copied


def test_compose_starts_the_inference_emulator_only_by_profile():
    document = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())
    emulator = document["services"]["inference-emulator"]
    assert emulator["profiles"] == ["inference-emulator"]
    assert not {"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & emulator["environment"].keys()


def test_every_setting_passed_to_the_supervisor_is_documented():
    documented = (PROJECT / "docs" / "configuration.md").read_text()
    assert [name for name in services._HANDED_ON if f"`{name}`" not in documented] == []


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", (PROJECT / "README.md").read_text()))
    assert named
    assert named <= targets


def _too_long(page: Path) -> list[str]:
    """Return lines of prose that are too wide. Tables, commands and addresses cannot be broken."""
    long, fenced = [], False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fenced ^= line.lstrip().startswith("```")
        whole = fenced or line.lstrip().startswith(("|", "    ", "![", "<")) or line.startswith("    ")
        if len(line) > COLUMNS and not whole and " " in line.strip():
            long.append(f"{page.name}:{number}: {len(line)} columns")
    return long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_lines_of_pages_are_within_the_limit(page: Path) -> None:
    assert _too_long(page) == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_is_one_page(record: Path) -> None:
    text = record.read_text()
    assert len(text.split()) <= MOST_WORDS
    assert text.startswith(f"# {record.name[:4]}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_the_index_lists_every_decision_record_once() -> None:
    index = (PROJECT / "docs" / "decisions" / "README.md").read_text()
    assert re.findall(r"\]\((\d{4}-[^)]+)\)", index) == [record.name for record in RECORDS]


def test_every_named_decision_exists() -> None:
    """References are numbers in comments and pages ("decision 0012") and paths."""
    named = r"(decisions/|[Dd]ecisions? \[?)[0-9]{4}(-[a-z0-9-]+\.md)?"
    lines = subprocess.run(
        ["git", "grep", "--only-matching", "--extended-regexp", named, "--", "*.py", "*.md", "*.html"],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    numbers = {record.name[:4] for record in RECORDS} | {record.name for record in RECORDS}
    assert lines
    assert [line for line in lines if re.split(r"[ /\[]", line)[-1] not in numbers] == []


def test_links_between_pages_have_a_target() -> None:
    """Checks files and headings in links of all pages."""
    link = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
    broken = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for path, heading in link.findall(text):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (heading and heading not in _anchors(target)):
                broken.append(f"{page.relative_to(PROJECT)}: {path}#{heading}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
