"""``requirements.txt`` of a bundle: packages by name, as wheels from the configured index, nothing else."""

from __future__ import annotations

import hashlib
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from scheduling.bundles.errors import BundleError

MAXIMUM_BYTES = 64 * 1024
MAXIMUM_LINES = 200
_COMMENT = re.compile(r"(^|\s)#.*$")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Normalised text (one requirement a line, sorted) and its SHA-256: equal needs share one environment."""

    #: The normalised lines.
    text: str
    #: SHA-256 of `text`.
    digest: str


def read_requirements(content: bytes) -> Requirements | None:
    """Read and normalise; None if nothing is required.

    Raises:
        BundleError: options, URLs, paths, or what is no requirement, with the line's number.
    """
    if len(content) > MAXIMUM_BYTES:
        raise BundleError("requirements", f"requirements.txt is larger than {MAXIMUM_BYTES} bytes.")
    try:
        # PowerShell writes what `pip freeze` says as UTF-16.
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BundleError("not_utf8", f"requirements.txt is not UTF-8 text (byte {error.start}).") from error
    lines = {
        _normalised(requirement, number)
        for number, line in enumerate(text.splitlines(), start=1)
        if (requirement := _COMMENT.sub("", line).strip())
    }
    if not lines:
        return None
    if len(lines) > MAXIMUM_LINES:
        raise BundleError("requirements", f"requirements.txt names more than {MAXIMUM_LINES} packages.")
    normalised = "".join(f"{line}\n" for line in sorted(lines))
    return Requirements(normalised, hashlib.sha256(normalised.encode()).hexdigest())


def _normalised(line: str, number: int) -> str:
    where = f"requirements.txt, line {number}"
    if line.startswith("-"):
        raise BundleError(
            "requirements", f"{where}: options such as {line.split()[0]} are not taken; name packages only."
        )
    if line.endswith("\\"):
        raise BundleError("requirements", f"{where}: write each requirement on one line.")
    if "://" in line or line.startswith((".", "/", "~")) or re.search(r"\.(whl|zip|tar\.gz|tgz)$", line):
        raise BundleError(
            "requirements", f"{where}: files, URLs and repositories are not taken; name a package."
        )
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise BundleError("requirements", f"{where}: not a requirement: {reason}.") from error
    if requirement.url is not None:
        raise BundleError(
            "requirements", f"{where}: files, URLs and repositories are not taken; name a package."
        )
    extras = (
        f"[{','.join(sorted(canonicalize_name(extra) for extra in requirement.extras))}]"
        if requirement.extras
        else ""
    )
    specifiers = ",".join(sorted(str(specifier) for specifier in requirement.specifier))
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{canonicalize_name(requirement.name)}{extras}{specifiers}{marker}"
