"""Errors of starting the platform, as one sentence with a hint for the person at the terminal."""

from __future__ import annotations


class LaunchError(Exception):
    """The platform cannot be started or went down; the message says why and what to do about it."""
