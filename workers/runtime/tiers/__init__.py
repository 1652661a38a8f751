"""States of experts in device memory, host memory and files while they train (MoESys 2.1 to 2.3)."""
