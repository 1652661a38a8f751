"""`python -m tests.drift`: Django's own checks, forgotten migrations, drift of the OpenAPI document.

One process, since each start of Django takes seconds. The database is not needed.
"""

from __future__ import annotations

import difflib
import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import django
import drf_spectacular.validation
import yaml
from django.core.management import call_command
from jsonschema import Draft202012Validator, exceptions  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from launch.folders import PROJECT

DOCUMENT = PROJECT / "docs/openapi.yaml"
GENERATED = PROJECT / ".tool/openapi.yaml"
OPENAPI_SCHEMA = Path(drf_spectacular.validation.__file__).with_name("openapi_3_1_schema.json")


def main() -> None:
    """Exit with a message if anything has drifted."""
    # As in manage.py: few of the objects that migrations create become garbage.
    gc.set_threshold(100_000, 50, 100)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    call_command("check", fail_level="WARNING")
    # An unreachable database gives a warning, which is no finding here.
    warnings.simplefilter("ignore", RuntimeWarning)
    call_command("makemigrations", check_changes=True, dry_run=True, skip_checks=True)
    GENERATED.parent.mkdir(exist_ok=True)
    call_command("spectacular", file=str(GENERATED), fail_on_warn=True, skip_checks=True)
    generated = GENERATED.read_text(encoding="utf-8")
    if error := find_error(yaml.load(generated, Loader=yaml.CSafeLoader)):
        sys.exit(f"the OpenAPI document is invalid: {error}")
    if differences := find_differences(DOCUMENT.read_text(encoding="utf-8"), generated):
        sys.exit(f"{differences}docs/openapi.yaml is out of date: make openapi")


def find_error(document: dict[str, Any]) -> str | None:
    """Return what OpenAPI 3.1 does not allow in the document.

    `spectacular --validate` takes four times as long: jsonschema walks through the whole schema for each
    reference to an anchor unless it has been walked through before.
    """
    schema = json.loads(OPENAPI_SCHEMA.read_text(encoding="utf-8"))
    registry = Registry().with_resource(schema["$id"], DRAFT202012.create_resource(schema)).crawl()
    error = exceptions.best_match(Draft202012Validator(schema, registry=registry).iter_errors(document))
    return None if error is None else f"{error.json_path}: {error.message}"


def find_differences(document: str, generated: str) -> str:
    """Return a unified diff, or an empty string if they are equal."""
    before, after = document.splitlines(keepends=True), generated.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, str(DOCUMENT), str(GENERATED)))


if __name__ == "__main__":
    main()
