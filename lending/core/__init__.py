"""Pure lending arithmetic: no Django, no clock, no I/O."""
