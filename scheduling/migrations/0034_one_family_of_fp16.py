"""Who names FP16 alone has the family of those who name no codec; what was measured as that before codecs were
to be named belongs to no such job."""

import hashlib
import json

from django.db import migrations

UNNAMED, FP16 = "lossy", "lossy(fp16)"
#: What the family `lossy` was chosen from before.
ALL = "lossy(dgc+ef-signsgd+fp16+onebit+random-k)"


def one_family(apps, _editor):
    """Rename families of curves and plans, and with them the keys by which curves are found."""
    profiles = apps.get_model("scheduling", "GradientProfile").objects
    functions = set(profiles.values_list("key", flat=True))
    curves = apps.get_model("scheduling", "ScalingCurve").objects
    for old, new in ((UNNAMED, ALL), (FP16, UNNAMED)):
        keys = {_key(function, old): _key(function, new) for function in functions}
        for curve in curves.filter(plan_family=old):
            key = keys.get(curve.key)
            if key is None or curves.filter(key=key).exists():
                # It stays for its jobs, and nobody else finds it.
                key = hashlib.sha256(f"kept for its jobs: {curve.key}".encode()).hexdigest()
            curve.key, curve.plan_family = key, new
            curve.save(update_fields=["key", "plan_family"])
    for profile in profiles.filter(plans__family__in=(UNNAMED, FP16)).distinct():
        for old, new in ((UNNAMED, ALL), (FP16, UNNAMED)):
            for plan in profile.plans.filter(family=old):
                place = {"servers": plan.servers, "gpus_per_server": plan.gpus_per_server}
                if profile.plans.filter(family=new, **place).exists():
                    plan.delete()
                else:
                    plan.family = new
                    plan.save(update_fields=["family"])
        had_all = profile.plans.filter(family=ALL).exists()
        families = {*profile.families, *((ALL,) if had_all else ())} - {FP16}
        profile.families, profile.planned_from = sorted(families), ""
        profile.save(update_fields=["families", "planned_from"])


def _key(function, family):
    content = json.dumps([function, family], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0033_families_of_all_codecs'),
    ]

    operations = [migrations.RunPython(one_family, migrations.RunPython.noop)]
