"""Families of plans that an earlier release has measured, by the names that they have now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from communication.library.codec_names import LOSSY
from scheduling.core.runtime_plans.plan import family_name
from scheduling.curve_keys import key_of_family
from tests.lending.test_migrations import migrate

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE: list[tuple[str, str | None]] = [("scheduling", "0033_families_of_all_codecs")]
AFTER: list[tuple[str, str | None]] = [("scheduling", "0034_one_family_of_fp16")]
EVERYTHING = family_name(lossy=True, codecs=LOSSY)
UNNAMED, NAMED = "lossy", "lossy(fp16)"


@pytest.fixture
def before() -> Iterator[Any]:
    yield migrate(BEFORE)
    migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())


def _curve(apps: Any, function: str, family: str) -> int:
    key = key_of_family(function, family)
    curves = apps.get_model("scheduling", "ScalingCurve").objects
    return int(curves.create(key=key, gpu_kind="a100", plan_family=family).pk)


def _profile(apps: Any, function: str, *families: str) -> Any:
    profiles = apps.get_model("scheduling", "GradientProfile").objects
    profile = profiles.create(
        key=function, gpu_kind="a100", gpus=2, content={}, families=[NAMED], planned_from="made"
    )
    for family in families:
        profile.plans.create(
            family=family, servers=1, gpus_per_server=2, question="q", planner="cupcake", codec=family,
            chosen={}, speedup=2.0,
        )  # fmt: skip
    return profile


def test_fp16_named_is_the_family_of_those_who_name_nothing_and_older_curves_are_believed_for_no_such_job(
    before: Any,
) -> None:
    function, crowded = "f" * 64, "c" * 64
    old, named = _curve(before, function, UNNAMED), _curve(before, function, NAMED)
    lossless, every = _curve(before, function, "lossless"), _curve(before, crowded, EVERYTHING)
    twice, unknown = _curve(before, crowded, UNNAMED), _curve(before, "u" * 64, UNNAMED)
    _profile(before, function, UNNAMED, NAMED, "lossless")
    _profile(before, crowded, UNNAMED, EVERYTHING)
    after = migrate(AFTER)
    curves = {one.pk: one for one in after.get_model("scheduling", "ScalingCurve").objects.all()}
    families = {pk: one.plan_family for pk, one in curves.items()}
    assert families == {
        old: EVERYTHING, named: UNNAMED, lossless: "lossless", every: EVERYTHING, twice: EVERYTHING,
        unknown: EVERYTHING,
    }  # fmt: skip
    for pk in (old, named, lossless):
        assert curves[pk].key == key_of_family(function, families[pk])
    assert curves[every].key == key_of_family(crowded, EVERYTHING)
    for function_key, pk in ((crowded, twice), ("u" * 64, unknown)):
        assert curves[pk].key not in {key_of_family(function_key, one) for one in (UNNAMED, EVERYTHING)}
    plans = after.get_model("scheduling", "GradientPlan").objects
    found = plans.values_list("profile__key", "family", "codec")
    assert set(found) == {
        (function, EVERYTHING, UNNAMED), (function, UNNAMED, NAMED), (function, "lossless", "lossless"),
        (crowded, EVERYTHING, EVERYTHING),
    }  # fmt: skip
    profiles = after.get_model("scheduling", "GradientProfile").objects
    assert set(map(tuple, profiles.values_list("families", flat=True))) == {(EVERYTHING,)}
    assert set(profiles.values_list("planned_from", flat=True)) == {""}
