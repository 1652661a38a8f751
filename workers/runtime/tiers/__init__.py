"""States of experts in device memory, host memory and files while they train (MoESys)."""
