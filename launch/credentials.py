"""Secrets of a platform on one machine: generated once, stored in files that only their owner can read."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch.folders import write_private

DEMO_USER = "demo"
OPERATOR_USER = "operator"
PASSWORD_LENGTH = 12


@dataclass(frozen=True)
class Credentials:
    """Secrets for the platform's processes and for the person at the terminal."""

    #: Django's SECRET_KEY.
    secret_key: str
    #: Password of the example user.
    demo_password: str
    #: Password of the operator's account.
    operator_password: str
    #: Credential of the emulated inference scheduler; its prefix distinguishes it from a person's token.
    inference_credential: str

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Return the secrets in `folder`, generating missing ones."""
        return cls(
            secret_key=_read_or_generate(folder / "secret_key", lambda: secrets.token_urlsafe(48)),
            demo_password=_read_or_generate(folder / "demo_password", _password),
            operator_password=_read_or_generate(folder / "operator_password", _password),
            inference_credential=_read_or_generate(
                folder / "inference_credential", lambda: "ps_" + secrets.token_urlsafe(32)
            ),
        )


def _password() -> str:
    """Return about 71 random bits, in characters that need no quoting in a shell."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(PASSWORD_LENGTH))


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
