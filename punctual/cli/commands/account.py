"""`tokens`: API tokens of programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.client import Client, Token
from punctual.client.configuration import load_configuration, save_profile
from punctual.client.durations import parse_deadline

tokens_app = typer.Typer(help="List, create, rotate and revoke your API tokens.")

TokenId = Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]


class Scope(StrEnum):
    """A right of a token."""

    READ = "read"
    SUBMIT = "submit"
    MANAGE = "manage"
    OPERATE = "operate"


@tokens_app.callback(invoke_without_command=True)
def tokens(context: typer.Context, as_json: options.Json = False) -> None:
    """List your tokens."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found, own = client.tokens.list(), client.profile.token
    if as_json:
        output.print_json([token.raw for token in found])
        return
    output.print_table(
        ("ID", "NAME", "BEGINS WITH", "SCOPES", "PROJECTS", "CREATED", "EXPIRES", "LAST USED", ""),
        [
            (
                token.id,
                token.name,
                token.prefix,
                ", ".join(token.scopes),
                "all" if token.projects is None else ", ".join(token.projects) or "none",
                token.created_at,
                token.expires_at or "never",
                output.age_text(token.last_used_at),
                "revoked" if token.revoked_at else "this one" if is_same(token, own) else " ",
            )
            for token in found
        ],
    )


def is_same(token: Token, secret: str) -> bool:
    """Whether a listed token is the one with this secret."""
    return bool(token.prefix) and secret.startswith(token.prefix)


@tokens_app.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    expires: Annotated[
        str | None, typer.Option("--expires", help="30d, or 2030-01-31T00:00Z; by default never.")
    ] = None,
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="Scope; repeatable. By default those of your login."),
    ] = None,
    project: Annotated[
        list[str] | None, typer.Option("--project", help="Limit the token to this project; repeatable.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Create a token. It is shown only once."""
    scopes = [item.value for item in scope] if scope else None
    with session.client() as client:
        token = client.tokens.create(
            name, expires_at=_expiry(expires), scopes=scopes, projects=project or None
        )
    _show_secret(token, as_json)


def _expiry(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = parse_deadline(text, named="end of the token")
    return datetime.now(UTC) + moment if isinstance(moment, timedelta) else moment


def _show_secret(token: Token, as_json: bool) -> None:
    if as_json:
        output.print_json(token.raw)
    else:
        output.say(token.token)
        output.note("Keep it now: it is not shown again.")


@tokens_app.command("rotate")
def rotate_token(token: TokenId, as_json: options.Json = False) -> None:
    """Replace a token by a new one; the old one stops working. The one you are logged in with is stored
    anew."""
    with session.client() as client:
        fresh, was_own = _rotate(client, token)
        if was_own:
            stored = load_configuration().profiles.get(session.profile_name())
            if stored is not None and stored.token == client.profile.token:
                save_profile(stored.with_token(fresh.token), session.profile_name())
                output.note("You are logged in with it; the new one is stored.")
    _show_secret(fresh, as_json)


def _rotate(client: Client, token_id: str) -> tuple[Token, bool]:
    was_own = str((client.me().get("token") or {}).get("id", "")) == token_id
    return client.tokens.rotate(token_id), was_own


@tokens_app.command("revoke")
def revoke_token(token: TokenId, as_json: options.Json = False) -> None:
    """Revoke a token."""
    with session.client() as client:
        client.tokens.revoke(token)
    if as_json:
        output.print_json({"id": token, "revoked": True})
    else:
        output.say(f"Token {token} is revoked.")
