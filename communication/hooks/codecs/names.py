"""Codecs by the names that profiles and plans call them."""

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
    """The codec with the library's wire format.

    Raises ValueError where there is none of that name.
    """
    if name not in CODECS:
        raise ValueError(f"there is no codec {name!r} to run; there are {', '.join(CODECS)}")
    return CODECS[name]()
