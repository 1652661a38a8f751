"""The node agent: brings one server to the state that the control plane desires, and reports its actual
state."""
