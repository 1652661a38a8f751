"""Permissions: roles in a project, and operators.

Two rules hold everywhere. An object that a person may not see does not exist for them (404). An action on a
visible object that they may not perform is refused with the reason (403).
"""

from __future__ import annotations

from projects.errors import MissingScope, NotAllowed
from projects.models import Project, Role, Scope, User

_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}
_MAY = {
    Role.VIEWER: "look at it",
    Role.MEMBER: "submit and steer jobs",
    Role.OWNER: "manage its members",
}


def role_in(user: User, project: Project) -> Role | None:
    """Return the user's own role in the project; None for non-members (operators included)."""
    role = user.reachable_memberships().filter(project=project).values_list("role", flat=True).first()
    return None if role is None else Role(role)


def require_role(user: User, project: Project, at_least: Role) -> None:
    """Check that the user is an operator or has at least this role.

    Raises:
        NotAllowed: the role does not suffice.
    """
    if user.operates():
        return
    require(role_in(user, project), project, at_least)


def require(role: Role | None, project: Project, at_least: Role) -> None:
    """Check that ``role`` is at least ``at_least``.

    Raises:
        NotAllowed: it is not.
    """
    if role is None or _RANK[role] < _RANK[at_least]:
        have = "no role" if role is None else f"the role {role.value}"
        raise NotAllowed(
            f"You have {have} in project {project.name}; to {_MAY[at_least]} you need the role "
            f"{at_least.value}."
        )


def require_operator(user: User) -> None:
    """Check that the user acts as an operator.

    Raises:
        NotAllowed: the user does not.
    """
    if not user.operates():
        raise NotAllowed("Only operators of the cluster may do this.")


def require_scope(user: User, scope: Scope) -> None:
    """Check that the request uses a session, or a token of that scope.

    Raises:
        MissingScope: the token lacks the scope.
    """
    token = user.acting_token
    if token is not None and scope not in token.scopes:
        raise MissingScope(
            f"This token lacks the scope {scope.value}; it has {', '.join(token.scopes) or 'none'}.",
            extra={"scope": scope.value},
        )


def require_all_projects(user: User) -> None:
    """Check that the request uses a session, or a token that is not limited to single projects.

    Raises:
        NotAllowed: the token is limited.
    """
    if user.acting_token is not None and user.acting_token.project_ids is not None:
        raise NotAllowed("This token is limited to single projects; use one that is not.")
