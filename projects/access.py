"""Who may do what: roles in a project, and operators.

Two rules hold everywhere. What a person may not know of does not exist for them (404); what they know of but may
not do is refused with the reason (403).
"""

from __future__ import annotations

from projects.errors import NotAllowed
from projects.models import Membership, Project, Role, User

_RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.OWNER: 2}
_MAY = {
    Role.VIEWER: "look at it",
    Role.MEMBER: "submit and steer jobs",
    Role.OWNER: "manage its members",
}


def role_in(user: User, project: Project) -> Role | None:
    """The caller's own role in the project; None for a stranger (operators included)."""
    role = Membership.objects.filter(user=user, project=project).values_list("role", flat=True).first()
    return None if role is None else Role(role)


def require_role(user: User, project: Project, at_least: Role) -> None:
    """Let operators and those of sufficient role pass.

    Raises:
        NotAllowed: the role does not suffice.
    """
    if user.operates():
        return
    role = role_in(user, project)
    if role is None or _RANK[role] < _RANK[at_least]:
        have = "no role" if role is None else f"the role {role.value}"
        raise NotAllowed(
            f"You have {have} in project {project.name}; to {_MAY[at_least]} you need the role {at_least.value}."
        )


def require_operator(user: User) -> None:
    """Let operators pass.

    Raises:
        NotAllowed: the caller is none.
    """
    if not user.operates():
        raise NotAllowed("Only operators of the cluster may do this.")
