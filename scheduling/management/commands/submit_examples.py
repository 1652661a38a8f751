"""Submit the example functions as jobs of the demo user: something to look at from the first minute."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from projects.models import Membership, Project
from scheduling.services.requests.functions import function_upload
from scheduling.services.requests.jobs import JobRequest, job_submit

#: The project that `bootstrap_demo` makes.
DEMO_PROJECT = "demo"
EXAMPLES: tuple[dict[str, Any], ...] = (
    {
        "file": "image_classifier.py",
        "name": "image-classifier",
        "hyperparameters": {"global_batch_size": 64},
        "max_iterations": 400,
        "service_class": "slo",
        "deadline": timedelta(minutes=10),
    },
    {
        "file": "character_model.py",
        "name": "character-model",
        "hyperparameters": {"global_batch_size": 32},
        "max_iterations": 400,
        "service_class": "soft",
        "deadline": timedelta(minutes=8),
    },
    {
        "file": "recommender.py",
        "name": "recommender",
        "hyperparameters": {"global_batch_size": 128},
        "max_iterations": 400,
        "service_class": "best_effort",
        "deadline": None,
    },
    # `make run` deploys this one once it is trained.
    {
        "file": "moe_language_model.py",
        "name": "language-model",
        "hyperparameters": {"global_batch_size": 32},
        "max_iterations": 600,
        "service_class": "soft",
        "deadline": timedelta(minutes=20),
    },
)


class Command(BaseCommand):
    """Uploads each example and submits one job of it."""

    help = "Submit the four example functions with a hard deadline, soft ones and none."
    # As in `bootstrap_demo`.
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(name=DEMO_PROJECT).first()
        owner = Membership.objects.filter(project=project).select_related("user").order_by("id").first()
        if project is None or owner is None:
            raise CommandError("There is no demo project yet; run `manage.py bootstrap_demo` first.")
        for example in EXAMPLES:
            path = Path(settings.BASE_DIR) / "examples" / example["file"]
            version, _ = function_upload(
                project=project,
                actor=owner.user,
                name=example["name"],
                content=path.read_bytes(),
                filename=path.name,
            )
            request = JobRequest(
                function_version=version,
                name=example["name"],
                hyperparameters=example["hyperparameters"],
                max_iterations=example["max_iterations"],
                service_class=example["service_class"],
                deadline_at=timezone.now() + example["deadline"] if example["deadline"] else None,
                labels={"example": "true"},
                checkpoint_seconds=20.0,
            )
            job = job_submit(project=project, owner=owner.user, request=request)
            self.stdout.write(f"{job.pk} {job.name} ({job.service_class})")
