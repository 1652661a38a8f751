"""What a bundle is: bytes in, facts or a precise refusal out. Pure, and as hungry as its input makes it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass

from scheduling.bundles.archive import BundleFile, BundleLimits, is_zip, unpack
from scheduling.bundles.errors import BundleError
from scheduling.bundles.requirements import Requirements, read_requirements
from scheduling.bundles.source import find_function, lone_module_name, module_name, parse_modules


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What is known of a bundle. ``digest`` is the SHA-256 of its bytes; ``entry`` is ``module:Class``."""

    digest: str
    size_bytes: int
    entry: str
    description: str
    speed_neutral: tuple[str, ...]
    worker_counts: tuple[int, ...]
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
    contents = _contents(content, filename, limits)
    modules = {module_name(path): (path, text) for path, text in contents.items() if path.endswith(".py")}
    function = find_function(parse_modules(modules), entry)
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
        requirements=None if requirements is None else read_requirements(requirements),
        files=tuple(BundleFile(path, len(data)) for path, data in sorted(contents.items())),
    )


def _contents(content: bytes, filename: str, limits: BundleLimits) -> dict[str, bytes]:
    lower = filename.lower()
    if is_zip(content):
        return unpack(content, limits)
    if lower.endswith(".zip"):
        raise BundleError("not_a_zip", f"{filename} is not a zip file: it does not begin as one does.")
    if lower.endswith(".py"):
        if zipfile.is_zipfile(io.BytesIO(content)):
            # Others may take it for the zip that hangs at its end.
            raise BundleError(
                "not_python", f"{filename} has a zip at its end; upload either Python or a zip."
            )
        return {f"{lone_module_name(filename)}.py": content}
    raise BundleError("unknown_kind", f"{filename or 'The file'} is neither a .py file nor a zip.")
