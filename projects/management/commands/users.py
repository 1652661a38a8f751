"""Accounts from the machine of the control plane, without a login."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from projects.errors import DomainError
from projects.models import Role, User
from projects.selectors import account_get, accounts
from projects.services import password_reset, user_create, user_update


class Command(BaseCommand):
    """`punctual users` does the same for operators from anywhere."""

    help = "List, create, disable and enable accounts, and reset their passwords."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="all accounts")
        create = actions.add_parser("create", help="make an account; its password is printed once")
        create.add_argument("username")
        create.add_argument("--operator", action="store_true", help="an operator of the cluster")
        create.add_argument("--project", help="put the person into this project")
        create.add_argument(
            "--role", choices=Role.values, default=Role.MEMBER, help="the role there (member)"
        )
        _takes_password(create)
        for name, help_text in (
            ("disable", "close an account: its sessions and tokens stop working at once"),
            ("enable", "open an account again"),
            ("promote", "make a person an operator"),
            ("demote", "make an operator a person without rights over the cluster"),
            ("reset-password", "give an account another password, which is printed once"),
        ):
            action = actions.add_parser(name, help=help_text)
            action.add_argument("username")
            if name == "reset-password":
                _takes_password(action)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action'].replace('-', '_')}")(options)
        except DomainError as error:
            reasons = [message for messages in error.errors.values() for message in messages]
            raise CommandError(" ".join([error.detail, *reasons])) from None

    def _list(self, _options: dict[str, Any]) -> None:
        for user in accounts():
            facts = [
                "operator" if user.is_operator or user.is_superuser else "",
                "" if user.is_active else "disabled",
                *(f"{each.project.name} ({each.role})" for each in user.memberships.all()),
            ]
            self.stdout.write(f"{user.username:<20} {', '.join(filter(None, facts))}".rstrip())

    def _create(self, options: dict[str, Any]) -> None:
        projects = [(options["project"], Role(options["role"]))] if options["project"] else []
        _, generated = user_create(
            actor=None,
            username=options["username"],
            password=_password(options),
            is_operator=options["operator"],
            projects=projects,
        )
        self._show(generated, f"User {options['username']} is created.")

    def _reset_password(self, options: dict[str, Any]) -> None:
        generated = password_reset(user=_user(options), actor=None, password=_password(options))
        self._show(generated, f"The password of {options['username']} is another one.")

    def _disable(self, options: dict[str, Any]) -> None:
        user_update(user=_user(options), actor=None, is_active=False)

    def _enable(self, options: dict[str, Any]) -> None:
        user_update(user=_user(options), actor=None, is_active=True)

    def _promote(self, options: dict[str, Any]) -> None:
        user_update(user=_user(options), actor=None, is_operator=True)

    def _demote(self, options: dict[str, Any]) -> None:
        user_update(user=_user(options), actor=None, is_operator=False)

    def _show(self, generated: str | None, sentence: str) -> None:
        """The password alone goes to stdout, for a script to take."""
        self.stderr.write(sentence)
        if generated is not None:
            self.stdout.write(generated)
            self.stderr.write("Keep the password now: it is not shown again.")


def _takes_password(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--password-stdin", action="store_true", help="read the password from stdin; else one is generated"
    )


def _password(options: dict[str, Any]) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if options["password_stdin"] else None


def _user(options: dict[str, Any]) -> User:
    return account_get(options["username"])
