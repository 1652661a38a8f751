"""`projects` and `invitations`: projects and their members."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.cli.commands import quotas

projects_app = typer.Typer(help="List, create, archive and delete projects; manage their members.")
members_app = typer.Typer(help="List, invite and remove members; change their roles.")
invitations_app = typer.Typer(help="List, accept and decline invitations to projects.")
projects_app.add_typer(members_app, name="members")

ProjectName = Annotated[str, typer.Argument(metavar="PROJECT")]
Username = Annotated[str, typer.Argument(metavar="USERNAME")]
InvitationId = Annotated[str, typer.Argument(metavar="INVITATION", help="The invitation's id.")]


class Role(StrEnum):
    """Viewers look; members also submit and steer jobs; owners also manage members."""

    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"


@projects_app.callback(invoke_without_command=True)
def projects(context: typer.Context, as_json: options.Json = False) -> None:
    """List your projects."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.projects.list()
    if as_json:
        output.print_json([project.raw for project in found])
        return
    output.print_table(
        ("NAME", "YOUR ROLE", "DESCRIPTION", "CREATED"),
        [(project.name, project.role, project.description, project.created_at) for project in found],
        empty="No projects. Create one: punctual projects create NAME",
    )


@projects_app.command("create")
def create_project(
    name: ProjectName,
    description: Annotated[str, typer.Option("--description")] = "",
    as_json: options.Json = False,
) -> None:
    """Create a project; you become its owner."""
    with session.client() as client:
        project = client.projects.create(name, description=description)
    if as_json:
        output.print_json(project.raw)
    else:
        output.say(f"Project {project.name} is created.")


@projects_app.command("archive")
def archive_project(project: ProjectName, as_json: options.Json = False) -> None:
    """Archive a project: it takes no new work. All of its jobs must have finished."""
    with session.client() as client:
        archived = client.projects.archive(project)
    _tell(archived.raw, f"Project {project} is archived.", as_json)


@projects_app.command("restore")
def restore_project(project: ProjectName, as_json: options.Json = False) -> None:
    """Restore an archived project."""
    with session.client() as client:
        restored = client.projects.restore(project)
    _tell(restored.raw, f"Project {project} is open.", as_json)


@projects_app.command("quota")
def project_quota(project: ProjectName, limits: quotas.Limits = None, as_json: options.Json = False) -> None:
    """Show a project's limits; operators change them: LIMIT=VALUE."""
    with session.client() as client:
        quotas.show_or_change(client.projects, project, limits or (), as_json)


@projects_app.command("delete")
def delete_project(project: ProjectName, as_json: options.Json = False) -> None:
    """Delete a project in which no job was ever submitted; others are archived."""
    with session.client() as client:
        client.projects.delete(project)
    _tell({"name": project, "deleted": True}, f"Project {project} is deleted.", as_json)


@invitations_app.callback(invoke_without_command=True)
def invitations(
    context: typer.Context,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="List the invitations of this project instead.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the invitations that wait for your answer."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.projects.invitations(project)
    if as_json:
        output.print_json([item.raw for item in found])
        return
    output.print_table(
        ("ID", "PROJECT", "USERNAME", "ROLE", "INVITED BY", "EXPIRES"),
        [(i.id, i.project, i.username, i.role, i.invited_by, i.expires_at) for i in found],
        empty="No invitations.",
    )


@invitations_app.command("accept")
def accept_invitation(invitation: InvitationId, as_json: options.Json = False) -> None:
    """Become a member of the project."""
    with session.client() as client:
        member = client.projects.accept(invitation)
    _tell(member.raw, f"You are {member.role} now.", as_json)


@invitations_app.command("decline")
def decline_invitation(invitation: InvitationId, as_json: options.Json = False) -> None:
    """Decline an invitation. The project's owners are not notified."""
    with session.client() as client:
        client.projects.decline(invitation)
    _tell({"id": invitation, "declined": True}, f"Invitation {invitation} is declined.", as_json)


@invitations_app.command("withdraw")
def withdraw_invitation(
    project: ProjectName, invitation: InvitationId, as_json: options.Json = False
) -> None:
    """Take back an invitation to your project."""
    with session.client() as client:
        client.projects.withdraw(project, invitation)
    _tell({"id": invitation, "withdrawn": True}, f"Invitation {invitation} is withdrawn.", as_json)


def _tell(document: Any, sentence: str, as_json: bool) -> None:
    if as_json:
        output.print_json(document)
    else:
        output.say(sentence)


@members_app.command("invite")
def invite_member(
    project: ProjectName,
    username: Username,
    role: Annotated[Role, typer.Option("--role", help="viewer reads; member also submits; owner also "
                                                      "manages.")] = Role.MEMBER,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Invite a person. The answer does not reveal whether the name exists."""
    with session.client() as client:
        made = client.projects.invite(project, username, role.value)
    _tell(
        made.raw,
        f"{made.username} is invited to {project} as {made.role}, until accepted or declined.",
        as_json,
    )


@members_app.command("list")
def list_members(project: ProjectName, as_json: options.Json = False) -> None:
    """List a project's members."""
    with session.client() as client:
        found = client.projects.members(project)
    if as_json:
        output.print_json([member.raw for member in found])
        return
    output.print_table(("USERNAME", "ROLE", "SINCE"), [(m.username, m.role, m.created_at) for m in found])


@members_app.command("add")
def add_member(
    project: ProjectName,
    username: Username,
    role: Annotated[Role, typer.Option("--role", help="viewer reads; member also submits; owner also "
                                                      "manages.")] = Role.MEMBER,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Add a person to a project without an invitation (operators)."""
    with session.client() as client:
        member = client.projects.add_member(project, username, role.value)
    if as_json:
        output.print_json(member.raw)
    else:
        output.say(f"{member.username} is {member.role} of {project}.")


@members_app.command("role")
def change_role(project: ProjectName, username: Username, role: Role, as_json: options.Json = False) -> None:
    """Give a member another role."""
    with session.client() as client:
        member = client.projects.change_role(project, username, role.value)
    if as_json:
        output.print_json(member.raw)
    else:
        output.say(f"{member.username} is {member.role} of {project}.")


@members_app.command("remove")
def remove_member(project: ProjectName, username: Username, as_json: options.Json = False) -> None:
    """Remove a person from a project. The last owner cannot leave."""
    with session.client() as client:
        client.projects.remove_member(project, username)
    if as_json:
        output.print_json({"project": project, "username": username, "removed": True})
    else:
        output.say(f"{username} is no longer a member of {project}.")
