"""Tables, content types and permissions of lending get the app's name. Rows stay where they are: a table is
renamed, and a permission that somebody holds belongs to the same content type as before."""

from django.db import IntegrityError, migrations, transaction

MODELS = (
    "InferenceCluster",
    "LendingEvent",
    "LoanOrder",
    "ReclaimOrder",
    "ReclaimedServer",
    "TrainedForecaster",
    "ForecasterTraining",
    "UsageForecast",
    "UsageSample",
)


def _rename_content_types(apps, schema_editor, old, new):
    ContentType = apps.get_model("contenttypes", "ContentType")
    rows = ContentType.objects.using(schema_editor.connection.alias)
    for row in rows.filter(app_label=old, model__in=[name.lower() for name in MODELS]):
        row.app_label = new
        try:
            with transaction.atomic(using=schema_editor.connection.alias):
                row.save(update_fields=["app_label"])
        except IntegrityError:
            # Somebody stopped between the migrations and has rows of both: `remove_stale_contenttypes` knows.
            continue


def to_lending(apps, schema_editor):
    _rename_content_types(apps, schema_editor, "cluster", "lending")


def to_cluster(apps, schema_editor):
    _rename_content_types(apps, schema_editor, "lending", "cluster")


class Migration(migrations.Migration):
    dependencies = [
        ("lending", "0001_initial"),
        ("cluster", "0012_lending_is_an_app"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        *(migrations.AlterModelTable(name=name.lower(), table=None) for name in MODELS),
        migrations.RenameIndex(
            model_name="lendingevent",
            old_name="cluster_len_inferen_872366_idx",
            new_name="lending_event_by_time",
        ),
        migrations.RunPython(to_lending, to_cluster),
    ]
