"""Codecs by their names in profiles and plans."""

from __future__ import annotations

from collections.abc import Mapping

from communication.hooks.codecs.dgc import DGC
from communication.hooks.codecs.ef_signsgd import SignSGD
from communication.hooks.codecs.half_precision import HalfPrecision
from communication.hooks.codecs.identity import Identity
from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.onebit import OneBit
from communication.hooks.codecs.random_k import RandomK

CODECS: Mapping[str, type[Codec]] = {
    codec.name: codec for codec in (Identity, HalfPrecision, RandomK, DGC, SignSGD, OneBit)
}


def codec_named(name: str) -> Codec:
    """Return the codec of that name, with the library's wire format.

    Raises ValueError for an unknown name.
    """
    if name not in CODECS:
        raise ValueError(f"there is no codec {name!r}; there are {', '.join(CODECS)}")
    return CODECS[name]()
