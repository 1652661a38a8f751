"""A state that was stored whole is a recovery point of one shard."""

from typing import Any

from django.db import migrations
from django.db.models import F


def as_one_shard(apps: Any, schema_editor: Any) -> None:
    checkpoints = apps.get_model("scheduling", "Checkpoint").objects.filter(complete_at__isnull=True)
    shards = apps.get_model("scheduling", "StateShard").objects
    shards.bulk_create(
        [
            shards.model(checkpoint_id=pk, number=0, uri=uri, size_bytes=size_bytes, stored_at=stored_at)
            for pk, uri, size_bytes, stored_at in checkpoints.values_list(
                "pk", "uri", "size_bytes", "stored_at"
            )
        ],
        batch_size=1_000,
    )
    checkpoints.update(complete_at=F("stored_at"))


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0014_state_shards")]

    operations = [migrations.RunPython(as_one_shard, migrations.RunPython.noop)]
