"""What lending decides by arithmetic alone: no Django, no clock, no I/O."""
