"""Names of codecs, for modules without numerical dependencies."""

from __future__ import annotations

#: Lossy codecs.
LOSSY = ("fp16", "random-k", "dgc", "ef-signsgd", "onebit")

#: The default lossy codecs: with them the loss at equal steps matches plain training under any optimizer. The
#: others send errors later, which is sound if an update is proportional to the gradient (Karimireddy and
#: others, 2019). Optimizers that divide by a mean of squared gradients mistake the codec's errors for part of
#: it (Tang and others, 2021).
FAITHFUL = ("fp16",)

#: Codecs that keep a momentum besides residuals.
KEEPS_MOMENTUM = frozenset({"dgc"})
