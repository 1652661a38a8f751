"""What identifiers in addresses look like: for Django's converters and for the OpenAPI document."""

from __future__ import annotations

from typing import Any

#: PostgreSQL's bigint holds every number of 18 digits.
ROW_ID = r"[1-9][0-9]{0,17}"
JOB_ID = r"[a-z0-9]{1,16}"
PROJECT_NAME = r"[-a-zA-Z0-9_]{1,64}"
USERNAME = r"[-\w.@+]{1,150}"
FILE_NAME = r"[^\x00-\x1f/]{1,200}"

#: By the names under which the converters are registered.
OPENAPI_PATHS: dict[str, dict[str, Any]] = {
    "row": {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
    "job": {"type": "string", "pattern": f"^{JOB_ID}$"},
    "project": {"type": "string", "pattern": f"^{PROJECT_NAME}$"},
    # Letters may be of any script, which patterns of JSON schemas cannot say.
    "username": {"type": "string", "pattern": r"^[^/\s]{1,150}$"},
    "file": {"type": "string", "pattern": r"^[^/]{1,200}$"},
}
