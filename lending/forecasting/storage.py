"""A model's arrays to and from bytes, as a NumPy archive without pickled objects."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from lending.forecasting.errors import ForecasterError

Arrays = Mapping[str, NDArray[Any]]

_KIND = "forecaster"


def pack(name: str, arrays: Arrays) -> bytes:
    """Return the arrays of forecaster ``name`` as bytes."""
    out = BytesIO()
    np.savez(out, allow_pickle=False, **{_KIND: np.array(name)}, **arrays)
    return out.getvalue()


def unpack(name: str, data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that `pack` stored. Raises ForecasterError when ``data`` is not such an archive or
    another forecaster's."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, KeyError, BadZipFile) as error:
        raise ForecasterError(f"this is no stored forecaster: {error}") from None
    kind = str(arrays.pop(_KIND, ""))
    if kind != name:
        raise ForecasterError(f"this is a stored forecaster {kind or 'of no name'}, not {name}")
    return arrays
