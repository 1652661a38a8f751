"""Names of codecs, for those that compute nothing with them."""

from __future__ import annotations

#: Those that lose something.
LOSSY = ("fp16", "random-k", "dgc", "ef-signsgd", "onebit")

#: Of these the ones that are used where nobody names any: under them the loss is that of training without, at
#: equal steps and whatever the optimizer. What others leave for later is made up for where an update is in
#: proportion to the gradient (Karimireddy and others, 2019); optimizers that divide by a mean of its squares
#: take what a codec adds for a part of it (Tang and others, 2021).
FAITHFUL = ("fp16",)

#: Those that keep a momentum beside what they have not sent yet.
KEEPS_MOMENTUM = frozenset({"dgc"})
