"""`manage.py replay`: compute recorded decisions once more and say which come out otherwise."""

from __future__ import annotations

import traceback
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.models import Decision, Incident
from simulation.replay import REALLOCATION, differences, replay


class Command(BaseCommand):
    """Replay recorded decisions: after an upgrade, or to see what another policy would have decided."""

    help = "Recompute recorded decisions from their snapshots and list those that differ."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One decision, or the last ones."""
        parser.add_argument("--decision", type=int, help="replay this decision alone")
        parser.add_argument("--incident", type=int, help="replay the failed decision of this incident")
        parser.add_argument(
            "--last", type=int, default=100, help="number of decisions to replay, newest first (100)"
        )
        parser.add_argument("--policy", help="use this policy instead of the recorded one")

    def handle(self, *args: Any, **options: Any) -> None:
        """Exit with an error when a decision comes out otherwise under its own policy."""
        if options["incident"] is not None:
            self._replay_incident(options["incident"], options["policy"])
            return
        chosen = Decision.objects.filter(snapshot__isnull=False)
        if options["decision"] is not None:
            chosen = chosen.filter(pk=options["decision"])
        rows = list(chosen.order_by("-id")[: options["last"]])
        if not rows:
            raise CommandError(
                "there is no such decision with a snapshot; snapshots are kept for a limited time"
            )
        differing = 0
        for row in rows:
            try:
                found = differences(
                    row.summary,
                    replay(bytes(row.snapshot or b""), policy=options["policy"] or row.policy, kind=row.kind),
                )
            except ValueError as error:
                raise CommandError(f"decision {row.pk}: {error}") from None
            differing += bool(found)
            for difference in found:
                self.stdout.write(f"decision {row.pk}: {difference}")
        self.stdout.write(f"{len(rows) - differing} of {len(rows)} decisions come out the same")
        if differing and options["policy"] is None:
            raise CommandError(f"{differing} decisions come out otherwise: the code or a policy has changed")

    def _replay_incident(self, incident_id: int, policy: str | None) -> None:
        """Ask again what had no answer: it has one now, or fails as it did, with the traceback."""
        row = (
            Incident.objects.filter(pk=incident_id, snapshot__isnull=False).select_related("cluster").first()
        )
        if row is None:
            raise CommandError(
                "there is no such incident with a snapshot; snapshots are kept for a limited time"
            )
        self.stdout.write(f"incident {row.pk}: {row.message}")
        chosen = policy or row.cluster.policy
        try:
            decision = replay(bytes(row.snapshot or b""), policy=chosen, kind=REALLOCATION)
        except Exception as error:  # noqa: BLE001 - whatever it is: it is what was asked for
            self.stderr.write("".join(traceback.format_exception(error)))
            raise CommandError(
                f"policy {chosen} still has no answer: {type(error).__name__}: {error}"
            ) from None
        self.stdout.write(
            f"policy {chosen} has an answer now: {len(decision.verdicts)} verdicts, {len(decision.changes)} "
            f"changes, {len(decision.at_risk)} promises at risk"
        )
