"""Uploaded training functions, read without ever running them.

``reading`` is pure: bytes in, facts or a precise refusal out. ``punctual.bundles`` unpacks within
limits and finds the class in the syntax tree, ``requirements`` reads ``requirements.txt``.
``bounded`` does it all in a process of its own, ``reading_process``, with bounded memory and time; use it
for uploaded bytes.
"""

from punctual.bundles.archive import BundleFile, BundleLimits
from scheduling.bundles.bounded import ReadingBounds, read_bundle_apart
from scheduling.bundles.errors import BundleError
from scheduling.bundles.reading import BundleFacts, read_bundle
from scheduling.bundles.requirements import Requirements

__all__ = [
    "BundleError",
    "BundleFacts",
    "BundleFile",
    "BundleLimits",
    "ReadingBounds",
    "Requirements",
    "read_bundle",
    "read_bundle_apart",
]
