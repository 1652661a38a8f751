"""MoESys, reproduced."""
