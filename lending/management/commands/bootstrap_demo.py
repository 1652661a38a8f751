"""Make the demo's users, project and agent enrolment tokens where they are missing."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from lending.choices import ScheduledBy
from lending.models import InferenceCluster
from lending.services.inference_clusters import inference_cluster_create, server_token_create
from projects.models import Membership, Project, Quota, Role, User, token_digest
from scheduling.management.commands.submit_examples import DEMO_PROJECT
from scheduling.services.agents.enrolment import cluster_get_or_create, enrolment_token_create


class Command(BaseCommand):
    """Idempotent: what is there already is left as it is, but for the passwords, which are set again."""

    help = (
        "Create the cluster, a demo user, an operator, the demo project, and a token for each --agent. "
        "Prints JSON."
    )
    # `make test` runs Django's checks; running them at each start takes two CPU seconds.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--agent", action="append", default=[], metavar="NAME", help="enrol a server of this name"
        )

        parser.add_argument(
            "--inference-cluster", default="", metavar="NAME", help="make an inference cluster"
        )
        parser.add_argument("--inference-period-seconds", type=float, default=300.0, metavar="SECONDS")
        parser.add_argument(
            "--inference-scheduled-by",
            choices=ScheduledBy.values,
            help="what lends its servers; by default unchanged",
        )
        parser.add_argument(
            "--inference-agent",
            action="append",
            default=[],
            metavar="NAME",
            help="enrol a server of that cluster",
        )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        cluster_get_or_create()
        demo = self._user("PUNCTUAL_DEMO_USER", "PUNCTUAL_DEMO_PASSWORD", is_operator=False)
        operator = self._user("PUNCTUAL_OPERATOR_USER", "PUNCTUAL_OPERATOR_PASSWORD", is_operator=True)
        project, _ = Project.objects.get_or_create(
            name=DEMO_PROJECT, defaults={"description": "Examples and first steps"}
        )
        Quota.objects.get_or_create(project=project)
        Membership.objects.get_or_create(project=project, user=demo, defaults={"role": Role.OWNER})
        tokens = {
            name: enrolment_token_create(created_by=operator, server_name=name) for name in options["agent"]
        }
        if options["inference_cluster"]:
            inference = self._inference_cluster(
                options["inference_cluster"], operator, options["inference_period_seconds"]
            )
            if options["inference_scheduled_by"]:
                inference.scheduled_by = options["inference_scheduled_by"]
                inference.save(update_fields=["scheduled_by"])
            tokens |= {
                name: server_token_create(inference_cluster=inference, created_by=operator, server_name=name)
                for name in options["inference_agent"]
            }
        self.stdout.write(json.dumps({"agents": tokens, "project": project.name}))

    def _inference_cluster(self, name: str, operator: User, period_seconds: float) -> InferenceCluster:
        credential = os.environ.get("PUNCTUAL_INFERENCE_CREDENTIAL")
        if not credential:
            raise CommandError("Set PUNCTUAL_INFERENCE_CREDENTIAL in the environment.")
        inference = InferenceCluster.objects.filter(name=name).first() or inference_cluster_create(
            name=name,
            actor=operator,
            settings={
                "period_seconds": period_seconds,
                "minimum_hold_seconds": 6 * period_seconds,
                # Two per cent of a handful of servers would round up to a whole one.
                "headroom_fraction": 0.0,
            },
        )
        inference.credential_digest = token_digest(credential)
        inference.save(update_fields=["credential_digest"])
        return inference

    def _user(self, name_variable: str, password_variable: str, *, is_operator: bool) -> User:
        name, password = os.environ.get(name_variable), os.environ.get(password_variable)
        if not name or not password:
            raise CommandError(f"Set {name_variable} and {password_variable} in the environment.")
        user, created = User.objects.get_or_create(username=name, defaults={"is_operator": is_operator})
        if created or not user.check_password(password):
            user.set_password(password)
            user.save()
        return user
