"""The node agent: makes true on one server what the control plane says should be true, and reports what
is."""
