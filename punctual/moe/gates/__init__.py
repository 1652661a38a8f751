"""The gates of mixture-of-experts layers, one file each. A new gate is a file and a line here."""

from __future__ import annotations

from punctual.moe.gates.adaptive import Adaptive as Adaptive
from punctual.moe.gates.gate import Gate as Gate
from punctual.moe.gates.gate import Routing as Routing
from punctual.moe.gates.top_k import TopK as TopK
