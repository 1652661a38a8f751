"""`users`: accounts, for operators."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.cli.commands import quotas
from punctual.cli.commands.projects import Role, Username
from punctual.client import User
from punctual.errors import InvalidInputError

users_app = typer.Typer(help="List, create, disable and enable accounts; reset their passwords (operators).")

PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin; else one is generated.")
]


@users_app.callback(invoke_without_command=True)
def users(context: typer.Context, as_json: options.Json = False) -> None:
    """List all accounts."""
    if context.invoked_subcommand is None:
        list_users(as_json)


@users_app.command("list")
def list_users(as_json: options.Json = False) -> None:
    """List all accounts."""
    with session.client() as client:
        found = client.users.list()
    if as_json:
        output.print_json([user.raw for user in found])
        return
    output.print_table(
        ("USERNAME", "", "PROJECTS", "CREATED", "LAST LOGIN"),
        [
            (
                user.username,
                ", ".join(
                    word
                    for word, holds in (("operator", user.is_operator), ("disabled", not user.is_active))
                    if holds
                )
                or " ",
                ", ".join(f"{item.get('name')} ({item.get('role')})" for item in user.projects) or "none",
                user.created_at,
                output.age_text(user.last_login),
            )
            for user in found
        ],
    )


@users_app.command("create")
def create_user(
    username: Username,
    operator: Annotated[bool, typer.Option("--operator", help="An operator of the cluster.")] = False,
    project: Annotated[
        list[str] | None, typer.Option("--project", "-p", help="Add the person to this project; repeatable.")
    ] = None,
    role: Annotated[Role, typer.Option("--role", help="The role in each project.")] = Role.MEMBER,
    password_stdin: PasswordStdin = False,
    as_json: options.Json = False,
) -> None:
    """Create an account. A generated password is shown only once."""
    password = _password(password_stdin)
    with session.client() as client:
        user = client.users.create(
            username,
            password=password,
            operator=operator,
            projects=dict.fromkeys(project or [], role.value),
        )
    if as_json:
        output.print_json(user.raw)
    else:
        output.note(f"User {user.username} is created.")
        _show(user.password)


@users_app.command("reset-password")
def reset_password(
    username: Username, password_stdin: PasswordStdin = False, as_json: options.Json = False
) -> None:
    """Give an account another password. Its sessions end, its tokens stay. A generated one is shown this
    once."""
    password = _password(password_stdin)
    with session.client() as client:
        generated = client.users.reset_password(username, password)
    if as_json:
        output.print_json({"username": username, "password": generated})
    else:
        output.note(f"The password of {output.safe(username)} is another one.")
        _show(generated)


@users_app.command("quota")
def user_quota(username: Username, limits: quotas.Limits = None, as_json: options.Json = False) -> None:
    """Show the limits of all projects that a person created; operators change them: LIMIT=VALUE."""
    with session.client() as client:
        quotas.show_or_change(client.users, username, limits or (), as_json)


@users_app.command("disable")
def disable_user(username: Username, as_json: options.Json = False) -> None:
    """Disable an account: its sessions and tokens stop working at once; its jobs continue."""
    with session.client() as client:
        user = client.users.disable(username)
    _tell(user, "is disabled", as_json)


@users_app.command("enable")
def enable_user(username: Username, as_json: options.Json = False) -> None:
    """Enable an account and its tokens again."""
    with session.client() as client:
        user = client.users.enable(username)
    _tell(user, "is enabled", as_json)


@users_app.command("promote")
def promote_user(username: Username, as_json: options.Json = False) -> None:
    """Make a person an operator."""
    with session.client() as client:
        user = client.users.promote(username)
    _tell(user, "is an operator", as_json)


@users_app.command("demote")
def demote_user(username: Username, as_json: options.Json = False) -> None:
    """Take an operator's rights. The last active operator keeps them."""
    with session.client() as client:
        user = client.users.demote(username)
    _tell(user, "is no operator", as_json)


def _password(from_stdin: bool) -> str | None:
    if not from_stdin:
        return None
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidInputError("the password is empty", hint="without --password-stdin one is generated")
    return password


def _show(password: str | None) -> None:
    if password is not None:
        output.say(password)
        output.note("Keep the password now: it is not shown again.")


def _tell(user: User, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(user.raw)
    else:
        output.say(f"{user.username} {what}.")
