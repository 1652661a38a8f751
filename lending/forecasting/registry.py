"""Forecasters by name. A new one needs a file and a line here."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from lending.forecasting.errors import ForecasterError

if TYPE_CHECKING:
    from lending.forecasting.forecaster import Forecaster

PERSISTENCE = "persistence"
# Import paths, so that a process loads NumPy or PyTorch only when it uses a forecaster.
FORECASTERS: dict[str, str] = {
    PERSISTENCE: "lending.forecasting.persistence:Persistence",
    "ridge": "lending.forecasting.ridge:Ridge",
    "lstm": "lending.forecasting.lstm:LongShortTermMemory",
}

#: Name by which a simulation asks for no forecaster.
NO_FORECASTER = "none"


def forecaster_class(name: str) -> type[Forecaster]:
    """Return the class of that name. Raises ForecasterError for an unknown name, or when its dependencies are
    not installed."""
    if name not in FORECASTERS:
        raise ForecasterError(f"no forecaster is called {name!r}; known are {', '.join(FORECASTERS)}")
    try:
        found: type[Forecaster] = resolve_name(FORECASTERS[name])
    except ImportError as error:
        raise ForecasterError(f"forecaster {name} cannot be used here: {error}") from error
    return found


def make_forecaster(name: str, **options: Any) -> Forecaster:
    """Return an unfitted forecaster. Raises ForecasterError as `forecaster_class` does."""
    return forecaster_class(name)(**options)


def load_forecaster(name: str, data: bytes) -> Forecaster:
    """Return a stored forecaster. Raises ForecasterError as `forecaster_class` does, and when ``data`` is
    another forecaster's."""
    return forecaster_class(name).from_bytes(data)
