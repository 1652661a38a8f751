"""Where declared data may come from: URL schemes that the installed storage libraries can read."""

from __future__ import annotations

from functools import cache

import fsspec

#: In the order in which a person is told of them. ``http`` and ``https`` need no library of their own.
DATA_SCHEMES = ("https", "http", "s3", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "ftp", "sftp", "oss")


@cache
def missing_library(scheme: str) -> str:
    """What reading ``scheme`` lacks here, in the storage library's own words; "" when nothing."""
    if scheme in ("http", "https"):
        return ""
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        return str(error)
    return ""


def readable_schemes() -> list[str]:
    """The schemes whose library is installed."""
    return [scheme for scheme in DATA_SCHEMES if not missing_library(scheme)]
