"""Mixture-of-experts layers for training functions, on the platform or without it (docs/moe.md).

Needs PyTorch, so `import punctual` does not import this package.
"""

from __future__ import annotations

from punctual.moe.exchange import ExpertExchange, LocalExchange
from punctual.moe.gates import Adaptive, Gate, Routing, TopK
from punctual.moe.group_exchange import GroupExchange
from punctual.moe.layer import MoELayer
from punctual.moe.model import balance_loss, expert_parameters, moe_layers, routing_counts
from punctual.moe.placement import ExpertPlacement
from punctual.moe.records import RoutingCounts
from punctual.moe.tables import PartitionedEmbedding

__all__ = [
    "Adaptive",
    "ExpertExchange",
    "ExpertPlacement",
    "Gate",
    "GroupExchange",
    "LocalExchange",
    "MoELayer",
    "PartitionedEmbedding",
    "Routing",
    "RoutingCounts",
    "TopK",
    "balance_loss",
    "expert_parameters",
    "moe_layers",
    "routing_counts",
]
