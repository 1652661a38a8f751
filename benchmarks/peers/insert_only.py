"""Settings of the peer for benchmarks/scheduling/submissions.py.

They are the platform's, with one address that only inserts a row.

The view is in a separate file because Django REST framework reads its settings at its first import, which
must not happen while they are being defined.
"""

from __future__ import annotations

from config.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.peers.insert_only_urls"
