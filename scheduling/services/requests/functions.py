"""Stores training functions: immutable versions, addressed by the digest of their bytes."""

from __future__ import annotations

import hashlib

from django.conf import settings
from django.db import transaction
from django.db.models import Max

from projects.models import Project, User
from projects.services.openness import lock_open_project
from scheduling.bundles import BundleFacts, BundleLimits, ReadingBounds, read_bundle_apart
from scheduling.models import Bundle, Function, FunctionVersion
from scheduling.services.requests.environment_requests import environment_request
from scheduling.services.verdicts.quotas import check_bundle_bytes


def function_upload(
    *, project: Project, actor: User, name: str, content: bytes, filename: str, entry: str | None = None
) -> tuple[FunctionVersion, bool]:
    """Store a bundle as the next version of a function; the same bytes and entry give the same version.

    Return the version and whether it is new. Either everything is stored or nothing.

    Raises:
        BundleError: the bundle cannot be used, with the reason.
        QuotaExceeded: the bundles of the project, or of its creator's projects in sum, would exceed their
            bytes, or too many of their environments are not built yet.
        Conflict: the project is archived.
        Unavailable: too many uploads are under way; try again soon.
    """
    # Before the bundle is read: without quota, an upload must not cause work either.
    check_bundle_bytes(project, hashlib.sha256(content).hexdigest(), len(content))
    limits = BundleLimits(unpacked_bytes=settings.MAXIMUM_UNPACKED_BUNDLE_BYTES)
    bounds = ReadingBounds(memory_bytes=settings.BUNDLE_READING_BYTES)
    facts = read_bundle_apart(content, filename, entry, limits, bounds)
    with transaction.atomic():
        return _store(project, actor, name, content, facts)


def _store(
    project: Project, actor: User, name: str, content: bytes, facts: BundleFacts
) -> tuple[FunctionVersion, bool]:
    # Uploads to a project are serialised, so that version numbers have no gaps and the quota holds.
    lock_open_project(project)
    if project.created_by_id is not None:
        User.objects.select_for_update(no_key=True).get(pk=project.created_by_id)
    if facts.requirements is not None:
        environment_request(project, facts.requirements.digest, facts.requirements.text)
    function, _ = Function.objects.get_or_create(project=project, name=name)
    known = FunctionVersion.objects.filter(function=function, bundle=facts.digest, entry=facts.entry).first()
    if known is not None:
        return known, False
    check_bundle_bytes(project, facts.digest, facts.size_bytes)
    Bundle.objects.get_or_create(
        digest=facts.digest, defaults={"content": content, "size_bytes": facts.size_bytes}
    )
    latest = FunctionVersion.objects.filter(function=function).aggregate(number=Max("number"))["number"]
    version = FunctionVersion.objects.create(
        function=function,
        number=(latest or 0) + 1,
        bundle_id=facts.digest,
        entry=facts.entry,
        speed_neutral=list(facts.speed_neutral),
        worker_counts=list(facts.worker_counts),
        experts=None if facts.experts is None else list(facts.experts),
        description=facts.description,
        requirements_digest=facts.requirements.digest if facts.requirements else "",
        files=[{"path": file.path, "size_bytes": file.size_bytes} for file in facts.files],
        created_by=actor,
    )
    return version, True
