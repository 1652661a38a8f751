"""The evaluation of adaptive gating, computed by `moe/gating`."""
