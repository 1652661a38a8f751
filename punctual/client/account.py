"""API tokens, projects with their members, and accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from punctual.client.durations import utc
from punctual.client.models import Invitation, Member, Project, Token, User
from punctual.client.reading import read, unreadable
from punctual.client.transport import Transport

#: Limits by name, such as `active_jobs` and `deployment_servers`; None for no limit.
Quota = dict[str, float | None]


class Tokens:
    """Issue, list, rotate and revoke your API tokens."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[Token]:
        """Return all tokens, without their secrets."""
        return [read(Token, item) for item in self._transport.pages("tokens/")]

    def create(
        self,
        name: str,
        *,
        expires_at: datetime | None = None,
        scopes: Sequence[str] | None = None,
        projects: Sequence[str] | None = None,
    ) -> Token:
        """Issue a token; `token.token` is shown only now.

        `scopes` (of `read`, `submit`, `manage`, `operate`) and `projects` limit it. Omitted ones are those of
        the requesting token, which the new one does not outlive.
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
        """Replace a token by a new one of the same name; the old one stops working."""
        path = f"tokens/{quote(str(token_id), safe='')}/rotate/"
        return read(Token, self._transport.send("POST", path, {}, repeatable=False))

    def revoke(self, token_id: str | int) -> None:
        """Revoke a token."""
        self._transport.send("DELETE", f"tokens/{quote(str(token_id), safe='')}/")


class Projects:
    """Projects and their members."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[Project]:
        """Return the projects visible to you."""
        return [read(Project, item) for item in self._transport.pages("projects/")]

    def create(self, name: str, *, description: str = "") -> Project:
        """Create a project, of which you become the owner."""
        return read(
            Project, self._transport.send("POST", "projects/", {"name": name, "description": description})
        )

    def quota(self, project: str) -> Quota:
        """Return a project's limits; None for no limit."""
        return _quota(self._transport.get(f"{_path(project)}quota/"))

    def set_quota(self, project: str, limits: Mapping[str, float | None]) -> Quota:
        """Change the given limits, as an operator; None removes a limit."""
        return _quota(self._transport.send("PATCH", f"{_path(project)}quota/", limits))

    def members(self, project: str) -> Sequence[Member]:
        """Return the members of a project with their roles."""
        return [read(Member, item) for item in self._transport.pages(_members_path(project))]

    def archive(self, project: str) -> Project:
        """Close a project to new work; all of its jobs must have finished."""
        return read(Project, self._transport.send("POST", f"{_path(project)}archive/", {}))

    def restore(self, project: str) -> Project:
        """Reopen an archived project."""
        return read(Project, self._transport.send("POST", f"{_path(project)}restore/", {}))

    def delete(self, project: str) -> None:
        """Delete a project without any jobs."""
        self._transport.send("DELETE", _path(project))

    def invite(self, project: str, username: str, role: str = "member") -> Invitation:
        """Invite a person to a project. The answer does not reveal whether that person exists."""
        body = {"username": username, "role": role}
        return read(Invitation, self._transport.send("POST", f"{_path(project)}invitations/", body))

    def invitations(self, project: str | None = None) -> Sequence[Invitation]:
        """Return the invitations that wait for your answer; with a project, those that its owners sent."""
        path = "invitations/" if project is None else f"{_path(project)}invitations/"
        return [read(Invitation, item) for item in self._transport.pages(path)]

    def accept(self, invitation_id: str | int) -> Member:
        """Accept an invitation."""
        path = f"invitations/{quote(str(invitation_id), safe='')}/accept/"
        return read(Member, self._transport.send("POST", path, {}))

    def decline(self, invitation_id: str | int) -> None:
        """Decline an invitation; the inviters are not notified."""
        self._transport.send("POST", f"invitations/{quote(str(invitation_id), safe='')}/decline/", {})

    def withdraw(self, project: str, invitation_id: str | int) -> None:
        """Withdraw an invitation."""
        path = f"{_path(project)}invitations/{quote(str(invitation_id), safe='')}/"
        self._transport.send("DELETE", path)

    def add_member(self, project: str, username: str, role: str = "member") -> Member:
        """Add a person to a project without an invitation, as an operator; owners use `invite`."""
        body = {"username": username, "role": role}
        return read(Member, self._transport.send("POST", _members_path(project), body))

    def change_role(self, project: str, username: str, role: str) -> Member:
        """Change a member's role."""
        path = f"{_members_path(project)}{quote(username, safe='')}/"
        return read(Member, self._transport.send("PATCH", path, {"role": role}))

    def remove_member(self, project: str, username: str) -> None:
        """Remove a member from a project. The last owner cannot be removed."""
        self._transport.send("DELETE", f"{_members_path(project)}{quote(username, safe='')}/")


class Users:
    """Manage accounts, as an operator."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Sequence[User]:
        """Return all accounts."""
        return [read(User, item) for item in self._transport.pages("users/")]

    def get(self, username: str) -> User:
        """Return one account."""
        return read(User, self._transport.get(_user_path(username)))

    def create(
        self,
        username: str,
        *,
        password: str | None = None,
        operator: bool = False,
        projects: Mapping[str, str] | None = None,
    ) -> User:
        """Create an account. Without a password one is generated: `user.password`, shown only now.

        `projects`: names, each with the person's role in it (`viewer`, `member`, `owner`).
        """
        body: dict[str, Any] = {"username": username, "is_operator": operator}
        if password is not None:
            body["password"] = password
        if projects:
            body["projects"] = [{"name": name, "role": role} for name, role in projects.items()]
        return read(User, self._transport.send("POST", "users/", body, repeatable=False))

    def quota(self, username: str) -> Quota:
        """Return the limits on the sum of all projects that a person created; None for no limit."""
        return _quota(self._transport.get(f"{_user_path(username)}quota/"))

    def set_quota(self, username: str, limits: Mapping[str, float | None]) -> Quota:
        """Change the given limits; None removes a limit."""
        return _quota(self._transport.send("PATCH", f"{_user_path(username)}quota/", limits))

    def disable(self, username: str) -> User:
        """Disable an account: its sessions and tokens stop working at once, its jobs continue."""
        return self._change(username, is_active=False)

    def enable(self, username: str) -> User:
        """Enable an account again, with its tokens."""
        return self._change(username, is_active=True)

    def promote(self, username: str) -> User:
        """Make a person an operator."""
        return self._change(username, is_operator=True)

    def demote(self, username: str) -> User:
        """Remove a person's operator rights; the last active operator keeps them."""
        return self._change(username, is_operator=False)

    def reset_password(self, username: str, password: str | None = None) -> str | None:
        """Set an account's password, and return it if it was generated, without `password`."""
        body = {} if password is None else {"password": password}
        path = f"{_user_path(username)}password/"
        answer: dict[str, Any] = self._transport.send("POST", path, body, repeatable=False)
        return answer.get("password")

    def _change(self, username: str, **changes: bool) -> User:
        return read(User, self._transport.send("PATCH", _user_path(username), changes))


def _quota(answer: Any) -> Quota:
    if not isinstance(answer, dict):
        raise unreadable("limits")
    return answer


def _user_path(username: str) -> str:
    return f"users/{quote(username, safe='')}/"


def _path(project: str) -> str:
    return f"projects/{quote(project, safe='')}/"


def _members_path(project: str) -> str:
    return f"{_path(project)}members/"
