"""One's own tokens, and projects with their members."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from punctual.client.durations import utc
from punctual.client.models import Member, Project, Token
from punctual.client.reading import read
from punctual.client.transport import Transport


class Tokens:
    """Issue, list, rotate and revoke one's API tokens."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[Token]:
        """All tokens, without the secrets themselves."""
        return [read(Token, item) for item in self._transport.pages("tokens/")]

    def create(
        self,
        name: str,
        *,
        expires_at: datetime | None = None,
        scopes: Sequence[str] | None = None,
        projects: Sequence[str] | None = None,
    ) -> Token:
        """Issue a token; `token.token` is shown this once.

        `scopes` (of `read`, `submit`, `manage`, `operate`) and `projects` limit what it opens. What is left out, it has
        from the token that asks, which it does not outlive.
        """
        body: dict[str, Any] = {"name": name}
        if expires_at is not None:
            body["expires_at"] = utc(expires_at).isoformat()
        if scopes is not None:
            body["scopes"] = list(scopes)
        if projects is not None:
            body["projects"] = list(projects)
        return read(Token, self._transport.send("POST", "tokens/", body, repeatable=False))

    def rotate(self, token_id: str | int) -> Token:
        """Replace a token by a new one under the same name; the old one stops working."""
        path = f"tokens/{quote(str(token_id), safe='')}/rotate/"
        return read(Token, self._transport.send("POST", path, {}, repeatable=False))

    def revoke(self, token_id: str | int) -> None:
        """Make a token worthless."""
        self._transport.send("DELETE", f"tokens/{quote(str(token_id), safe='')}/")


class Projects:
    """Projects and their members."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[Project]:
        """The projects one can see."""
        return [read(Project, item) for item in self._transport.pages("projects/")]

    def create(self, name: str, *, description: str = "") -> Project:
        """Make a project; one becomes its owner."""
        return read(
            Project, self._transport.send("POST", "projects/", {"name": name, "description": description})
        )

    def members(self, project: str) -> Sequence[Member]:
        """Who belongs to a project, and as what."""
        return [read(Member, item) for item in self._transport.pages(_members_path(project))]

    def add_member(self, project: str, username: str, role: str = "member") -> Member:
        """Take a person into a project as `viewer`, `member` or `owner`."""
        body = {"username": username, "role": role}
        return read(Member, self._transport.send("POST", _members_path(project), body))

    def change_role(self, project: str, username: str, role: str) -> Member:
        """Give a member another role."""
        path = f"{_members_path(project)}{quote(username, safe='')}/"
        return read(Member, self._transport.send("PATCH", path, {"role": role}))

    def remove_member(self, project: str, username: str) -> None:
        """Take a person out of a project. The last owner cannot go."""
        self._transport.send("DELETE", f"{_members_path(project)}{quote(username, safe='')}/")


def _members_path(project: str) -> str:
    return f"projects/{quote(project, safe='')}/members/"
