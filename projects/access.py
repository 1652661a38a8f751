"""Who may do what: roles in a project, and operators.

Two rules hold everywhere. What a person may not know of does not exist for them (404); what they know of but
may not do is refused with the reason (403).
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
    """The caller's own role in the project; None for a stranger (operators included)."""
    role = user.reachable_memberships().filter(project=project).values_list("role", flat=True).first()
    return None if role is None else Role(role)


def require_role(user: User, project: Project, at_least: Role) -> None:
    """Let operators and those of sufficient role pass.

    Raises:
        NotAllowed: the role does not suffice.
    """
    if user.operates():
        return
    require(role_in(user, project), project, at_least)


def require(role: Role | None, project: Project, at_least: Role) -> None:
    """Let who has the role in the project pass, where it suffices.

    Raises:
        NotAllowed: it does not.
    """
    if role is None or _RANK[role] < _RANK[at_least]:
        have = "no role" if role is None else f"the role {role.value}"
        raise NotAllowed(
            f"You have {have} in project {project.name}; to {_MAY[at_least]} you need the role "
            f"{at_least.value}."
        )


def require_operator(user: User) -> None:
    """Let operators pass.

    Raises:
        NotAllowed: the caller is none.
    """
    if not user.operates():
        raise NotAllowed("Only operators of the cluster may do this.")


def require_scope(user: User, scope: Scope) -> None:
    """Let sessions and tokens of that scope pass.

    Raises:
        MissingScope: the token was made for less.
    """
    token = user.acting_token
    if token is not None and scope not in token.scopes:
        raise MissingScope(
            f"This token lacks the scope {scope.value}; it has {', '.join(token.scopes) or 'none'}.",
            extra={"scope": scope.value},
        )


def require_all_projects(user: User) -> None:
    """Let sessions and tokens pass that are not limited to single projects.

    Raises:
        NotAllowed: the token is.
    """
    if user.acting_token is not None and user.acting_token.project_ids is not None:
        raise NotAllowed("This token is limited to single projects; use one that is not.")
