"""The cluster, users and servers of the control-plane tests without lending."""

from __future__ import annotations

from tests.control_plane.conftest import (  # noqa: F401 - fixtures
    borrowed,
    clock,
    cluster,
    curves_known,
    inference,
    owned,
    submit,
    version,
)
