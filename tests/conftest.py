"""Fixtures and rules for all tests; what must come earlier is in tests/plugins/embedded_servers.py."""

from __future__ import annotations

pytest_plugins = ["tests.plugins.browser", "tests.plugins.running_platform"]
