"""Say of every generation along which curve it runs: jobs may run on borrowed GPUs of another kind."""

from __future__ import annotations

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, Subquery


def take_the_jobs_curve(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Until now every generation ran on the kind of GPU that its job's curve is about."""
    generation, job = apps.get_model("scheduling", "Generation"), apps.get_model("scheduling", "Job")
    of_job = job.objects.filter(pk=OuterRef("job_id")).values("curve_id")[:1]
    generation.objects.update(curve_id=Subquery(of_job))


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0004_flexible_assignments")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="curve",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="generations",
                to="scheduling.scalingcurve",
            ),
        ),
        migrations.RunPython(take_the_jobs_curve, migrations.RunPython.noop),
    ]
