"""Times of codecs on each kind of device: measured by workers, else the library's defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cluster.models import Gpu
from communication.library.codec_names import LOSSY
from scheduling.models import GradientProfile

if TYPE_CHECKING:
    from communication.profiles.codec import CodecProfile

#: Sizes of gradients for default times.
DEFAULT_SIZES = (1 << 12, 1 << 16, 1 << 19)


@dataclass(frozen=True)
class CodecTime:
    """A codec on a kind of GPU. ``source``: `measured` or `default`. ``since``: when it was measured, and
    ``confirmed_at``: when this was last confirmed; None for defaults. Times are those of one gradient and
    one payload."""

    gpu_kind: str
    emulated: bool
    #: Name of the codec.
    codec: str
    source: str
    since: datetime | None
    confirmed_at: datetime | None
    #: Numbers of elements that were measured.
    elements: list[int]
    encode_seconds: list[float]
    decode_seconds: list[float]

    @property
    def largest(self) -> tuple[int, float, float]:
        """The largest size, with its times."""
        return self.elements[-1], self.encode_seconds[-1], self.decode_seconds[-1]


def codec_times() -> list[CodecTime]:
    """Return all lossy codecs on all kinds of GPU of known servers."""
    kinds: dict[str, bool] = {}
    for kind, emulated in Gpu.objects.known().order_by("kind").values_list("kind", "emulated").distinct():
        kinds[kind] = kinds.get(kind, False) or emulated
    return [one for kind, emulated in kinds.items() for one in _of_kind(kind, emulated)]


def _of_kind(kind: str, emulated: bool) -> Iterable[CodecTime]:
    # Imported here: tables of times are arrays, and few requests need them.
    from communication.library.codecs import gpu_codec
    from scheduling.gradient_records import codecs_of

    newest = (
        GradientProfile.objects.filter(gpu_kind=kind)
        .exclude(content__codecs=[])
        .order_by("-confirmed_at")
        .first()
    )
    measured = {} if newest is None else {one.name: one for one in codecs_of(newest.content)}
    for name in LOSSY:
        known = measured.get(name)
        if known is None or newest is None:
            yield _row(kind, emulated, gpu_codec(name), DEFAULT_SIZES, None)
        else:
            yield _row(kind, emulated, known, [int(size) for size in known.elements], newest)


def _row(
    kind: str, emulated: bool, codec: CodecProfile, sizes: Iterable[int], profile: GradientProfile | None
) -> CodecTime:
    elements = list(sizes)
    return CodecTime(
        kind,
        emulated,
        codec.name,
        "default" if profile is None else "measured",
        None if profile is None else profile.measured_at,
        None if profile is None else profile.confirmed_at,
        elements,
        codec.seconds_to_encode(elements).tolist(),
        codec.seconds_to_decode(elements).tolist(),
    )
