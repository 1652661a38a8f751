"""Secrets of a platform on one machine: generated once, kept in files that only their owner reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch.folders import write_private

DEMO_USER = "demo"
OPERATOR_USER = "operator"


@dataclass(frozen=True)
class Credentials:
    """What the platform's processes and the person at the terminal need to know."""

    secret_key: str
    demo_password: str
    operator_password: str
    #: Of the emulated inference scheduler; its prefix tells it from a person's token.
    inference_credential: str

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read the secrets in `folder`, generating those that are not there yet."""
        return cls(
            secret_key=_read_or_generate(folder / "secret_key", lambda: secrets.token_urlsafe(48)),
            demo_password=_read_or_generate(folder / "demo_password", lambda: secrets.token_urlsafe(9)),
            operator_password=_read_or_generate(
                folder / "operator_password", lambda: secrets.token_urlsafe(9)
            ),
            inference_credential=_read_or_generate(
                folder / "inference_credential", lambda: "ps_" + secrets.token_urlsafe(32)
            ),
        )


def _read_or_generate(path: Path, generate: Callable[[], str]) -> str:
    try:
        found = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        found = ""
    if found:
        return found
    secret = generate()
    write_private(path, secret + "\n")
    return secret
