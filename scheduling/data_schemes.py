"""URL schemes of declared data that the installed storage libraries can read."""

from __future__ import annotations

from punctual.protocol.storage import missing_library

#: In the order in which they are shown. ``http`` and ``https`` need no library of their own.
DATA_SCHEMES = ("https", "http", "s3", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "ftp", "sftp", "oss")


def readable_schemes() -> list[str]:
    """Return the schemes whose library is installed."""
    return [scheme for scheme in DATA_SCHEMES if not missing_library(scheme)]
