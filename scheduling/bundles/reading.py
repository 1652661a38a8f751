"""What a bundle is: bytes in, facts or a precise refusal out. Pure, and as hungry as its input makes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from punctual.bundles import errors as refusals
from punctual.bundles.archive import BundleFile, BundleLimits, read_files
from punctual.bundles.layout import read_function
from scheduling.bundles.errors import BundleError
from scheduling.bundles.requirements import Requirements, read_requirements


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What is known of a bundle. ``digest`` is the SHA-256 of its bytes; ``entry`` is ``module:Class``;
    ``experts`` are the numbers of its mixture-of-experts layers (`read_expert_counts`); ``predict_problem``:
    why the class cannot be deployed; empty if it can."""

    digest: str
    size_bytes: int
    entry: str
    #: The class's docstring.
    description: str
    #: Hyperparameters that do not change speed or memory.
    speed_neutral: tuple[str, ...]
    #: Declared numbers of workers; empty without a declaration.
    worker_counts: tuple[int, ...]
    predict_problem: str
    experts: tuple[int, ...] | None
    #: None without requirements.
    requirements: Requirements | None
    files: tuple[BundleFile, ...]


def read_bundle(content: bytes, filename: str, entry: str | None, limits: BundleLimits) -> BundleFacts:
    """Read one ``.py`` file or a zip.

    ``entry`` (``module:Class``) is needed only when several classes inherit from ``TrainingFunction``.

    Raises:
        BundleError: what is wrong, where, and what would be right.
    """
    if not content:
        raise BundleError("empty", "The file is empty.")
    try:
        contents = read_files(content, filename, limits)
        root, function = read_function(contents, entry)
    except refusals.BundleError as error:
        raise BundleError(error.reason, error.detail, field=error.field) from (error.__cause__ or error)
    contents = {path.removeprefix(root): data for path, data in contents.items()}
    requirements = contents.get("requirements.txt")
    folders = {path.partition("/")[0] for path in contents}
    if requirements is None and len(folders) == 1 and f"{next(iter(folders))}/requirements.txt" in contents:
        raise BundleError(
            "requirements", "requirements.txt must lie at the top of the zip; zip the folder's contents."
        )
    return BundleFacts(
        digest=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        entry=function.entry,
        description=function.description,
        speed_neutral=function.speed_neutral,
        worker_counts=function.worker_counts,
        predict_problem=function.predict_problem,
        experts=function.experts,
        requirements=None if requirements is None else read_requirements(requirements),
        files=tuple(BundleFile(path, len(data)) for path, data in sorted(contents.items())),
    )
