"""All that was measured and all that runs was under plans of the family `dense`."""

import hashlib
import json
from typing import Any

from django.db import migrations

PLAN: dict[str, Any] = {
    "family": "dense",
    "synchronisers": [
        {"kind": "sparse", "choices": {}},
        {"kind": "dense", "choices": {"gradients_in_buckets": True}},
    ],
}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def name_the_family(apps: Any, schema_editor: Any) -> None:
    """The family becomes a part of each curve's key; what was measured stays known."""
    curves = apps.get_model("scheduling", "ScalingCurve").objects
    changed = []
    for curve in curves.only("key").iterator(chunk_size=2_000):
        curve.key = _digest([curve.key, "dense"])
        changed.append(curve)
    curves.bulk_update(changed, ["key"], batch_size=500)


def give_plans(apps: Any, schema_editor: Any) -> None:
    """Workers that are still to start need the plan of their generation."""
    generations = apps.get_model("scheduling", "Generation").objects
    assignments = apps.get_model("scheduling", "Assignment").objects
    for generation in generations.exclude(state="retired"):
        servers = assignments.filter(generation=generation).values_list("gpu__server_id", flat=True)
        plan = {**PLAN, "shape": "packed" if len(set(servers)) <= 1 else "spread"}
        generation.runtime_plan = {**plan, "digest": _digest(plan)}
        generation.save(update_fields=["runtime_plan"])


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0017_runtime_plans")]

    operations = [
        migrations.RunPython(name_the_family, migrations.RunPython.noop),
        migrations.RunPython(give_plans, migrations.RunPython.noop),
    ]
