"""Settings of the peer for benchmarks/submissions.py: the platform's, with one address that only inserts a
row.

The view stands in a file of its own: Django REST framework reads its settings when it is first imported,
which must not happen while they are being defined.
"""

from __future__ import annotations

from config.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.peers.insert_only_urls"
