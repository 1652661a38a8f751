"""`login`, `logout`, `whoami`: the user's identity."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.client import Client, Profile
from punctual.client.configuration import checked_url, configuration_path, load_configuration, save_profile
from punctual.errors import ApiError, ConnectionFailedError, InvalidInputError, NoPlatformError


def login(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="The platform's address.")] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="Prompted for by default.")] = None,
    token: Annotated[str | None, typer.Option("--token",
    help="Use this token instead; - reads it from stdin.")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin",
    help="Read the password from stdin.")] = False,
    project: Annotated[str | None, typer.Option("--project", "-p",
    help="Use this project from now on.")] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Log in and remember it. The token is stored readable by you alone; the password is not stored."""
    address = _address(url)
    secret = _token_by_password(address, username, password_stdin) if token is None else _given_token(token)
    with Client(address, secret, retry_seconds=session.retry_seconds()) as client:
        me = client.me()
    known = [str(item.get("name")) for item in me.get("projects") or []]
    if project is not None and project not in known and not me.get("is_operator"):
        raise InvalidInputError(
            f"you are not a member of {project}", hint=f"yours: {', '.join(known) or 'none'}"
        )
    chosen = project or (known[0] if len(known) == 1 else "")
    profile = Profile(address, secret, str(me.get("username", "")), chosen)
    path = save_profile(profile, session.profile_name())
    if as_json:
        output.print_json(
            {"url": address, "username": profile.username, "project": chosen, "stored_in": str(path)}
        )
        return
    output.say(f"Logged in to {address} as {profile.username}{f', project {chosen}' if chosen else ''}.")
    if not chosen and known:
        output.note(f"Your projects: {', '.join(known)}. Choose one: punctual login {address} --project NAME")


def _address(url: str | None) -> str:
    stored = load_configuration().profiles.get(session.profile_name(), Profile())
    found = url or session.chosen().url or os.environ.get("PUNCTUAL_URL") or stored.url
    if not found:
        raise NoPlatformError("the platform's address is missing", hint="punctual login http://host:8000")
    return checked_url(found)


def _given_token(token: str) -> str:
    secret = sys.stdin.readline().strip() if token == "-" else token.strip()
    if not secret:
        raise InvalidInputError("the token is empty")
    return secret


def _token_by_password(address: str, username: str | None, password_stdin: bool) -> str:
    if username is None:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                "the user name is missing and there is no terminal to ask for it",
                hint="use --username, or --token -",
            )
        username = typer.prompt("Username", err=True, default=getpass.getuser())
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = getpass.getpass(f"Password of {output.safe(username)}: ")
    else:
        raise InvalidInputError(
            "the password is missing and there is no terminal to ask for it",
            hint="use --password-stdin, or --token -",
        )
    # Ignore a token in the environment, which may belong to another user or platform.
    with Client(address, retry_seconds=session.retry_seconds()) as client:
        client.transport.http.headers.pop("Authorization", None)
        return client.login(username, password, token_name=f"punctual on {socket.gethostname()}"[:100])


def logout(as_json: options.Json = False) -> None:
    """Revoke the stored token and forget it."""
    name = session.profile_name()
    stored = load_configuration().profiles.get(name, Profile())
    if not stored.token:
        raise NoPlatformError("you are not logged in", hint="nothing is stored; nothing to do")
    revoked = _revoke(stored)
    save_profile(stored.with_token(""), name)
    if as_json:
        output.print_json({"url": stored.url, "revoked": revoked})
    else:
        output.say(f"Logged out of {stored.url}.")
        if not revoked:
            output.note(f"The token is forgotten, but {stored.url} could not be told: it may still be valid.")


def _revoke(stored: Profile) -> bool:
    """Whether the platform revoked the token; an unknown token counts as revoked."""
    try:
        with Client(stored.url, stored.token, retry_seconds=0) as client:
            own = client.me().get("token") or {}
            if own:
                client.tokens.revoke(own["id"])
    except ConnectionFailedError:
        return False
    except ApiError as error:
        return error.status == 401
    return True


def whoami(as_json: options.Json = False) -> None:
    """Show who you are logged in as, and where."""
    with session.client() as client:
        me, profile = client.me(), client.profile
    if as_json:
        output.print_json(me | {"url": profile.url})
        return
    output.print_facts(_me_facts(me, profile))


def _me_facts(me: dict[str, Any], profile: Profile) -> list[tuple[str, Any]]:
    projects = [f"{item.get('name')} ({item.get('role')})" for item in me.get("projects") or []]
    return [
        ("Platform", profile.url),
        ("User", f"{me.get('username')}{', operator' if me.get('is_operator') else ''}"),
        ("Projects", ", ".join(projects) or "none"),
        ("Project used", profile.project),
        ("Stored in", str(configuration_path())),
    ]
