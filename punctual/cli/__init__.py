"""The command `punctual`."""

from punctual.cli.main import main

__all__ = ["main"]
