"""Which GPUs: buddy blocks, repacking, the smallest set of changes, and the moves that plans will force."""
