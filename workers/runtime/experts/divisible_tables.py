"""Finds the tables whose columns ranks can divide among them."""

from __future__ import annotations

from torch import nn

from punctual.function import TrainingFunction
from punctual.moe.tables import partitioned_tables, table_blocks
from workers.runtime.experts.spread_experts import kept_modules


def divisible_tables(function: TrainingFunction, module: nn.Module) -> dict[str, int]:
    """Return the places of blocks that may be divided among ranks, by the parameters' names in the model's
    state; the same on every rank.

    A table stays whole on every rank if it is frozen, or if the model uses its blocks elsewhere too. All
    tables stay whole if the model's own `state_dict` renames a block, if the function keeps copies of tables,
    or if the model trains nothing else, since DDP needs a parameter.
    """
    named = table_blocks(module)
    if not named or _keeps_copies(function, module):
        return {}
    state_names = module.state_dict().keys()
    everything = dict(module.named_parameters(remove_duplicate=False))
    elsewhere = {id(each) for name, each in everything.items() if name not in named}
    if not any(each.requires_grad for name, each in everything.items() if name not in named):
        return {}
    divisible = {
        id(block)
        for table in partitioned_tables(module).values()
        if all(block.requires_grad and id(block) not in elsewhere for block in table.blocks)
        for block in table.blocks
    }
    if not named.keys() <= state_names:
        return {}
    return {name: place for name, place in named.items() if id(everything[name]) in divisible}


def _keeps_copies(function: TrainingFunction, module: nn.Module) -> bool:
    known = {id(table) for table in partitioned_tables(module).values()}
    return any(
        id(table) not in known
        for kept in kept_modules(function)
        for table in partitioned_tables(kept).values()
    )
