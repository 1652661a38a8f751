"""Forecasters by name. A new one is a file and a line here."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from lending.forecasting.errors import ForecasterError

if TYPE_CHECKING:
    from lending.forecasting.forecaster import Forecaster

PERSISTENCE = "persistence"
# Named, not imported: a process loads numpy, or PyTorch, only to use a forecaster.
FORECASTERS: dict[str, str] = {
    PERSISTENCE: "lending.forecasting.persistence:Persistence",
    "ridge": "lending.forecasting.ridge:Ridge",
    "lstm": "lending.forecasting.lstm:LongShortTermMemory",
}

#: What nobody who forecasts is called, where a simulation asks for that.
NO_FORECASTER = "none"


def forecaster_class(name: str) -> type[Forecaster]:
    """The class behind a name. Raises ForecasterError for an unknown name, or when what it needs is not
    installed."""
    if name not in FORECASTERS:
        raise ForecasterError(f"no forecaster is called {name!r}; known are {', '.join(FORECASTERS)}")
    try:
        found: type[Forecaster] = resolve_name(FORECASTERS[name])
    except ImportError as error:
        raise ForecasterError(f"forecaster {name} cannot be used here: {error}") from error
    return found


def make_forecaster(name: str, **options: Any) -> Forecaster:
    """A forecaster that has learned nothing yet. Raises ForecasterError as `forecaster_class` does."""
    return forecaster_class(name)(**options)


def load_forecaster(name: str, data: bytes) -> Forecaster:
    """A stored forecaster. Raises ForecasterError, also when ``data`` is not one of that name."""
    return forecaster_class(name).from_bytes(data)
