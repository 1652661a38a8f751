import django.db.models.deletion
from django.db import migrations, models


def with_projects(apps, schema_editor):
    """An environment is that of the project which uploaded its requirements first."""
    versions = apps.get_model("scheduling", "FunctionVersion").objects
    first = versions.filter(requirements_digest=models.OuterRef("pk")).order_by("created_at", "pk")
    project = models.Subquery(first.values("function__project")[:1])
    apps.get_model("scheduling", "Environment").objects.update(project=project)


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0005_visible_names'),
        ('scheduling', '0037_quotas_are_incidents'),
    ]

    operations = [
        migrations.AddField(
            model_name='environment',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='projects.project'),
        ),
        migrations.RunPython(with_projects, migrations.RunPython.noop),
    ]
