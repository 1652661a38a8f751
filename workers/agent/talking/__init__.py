"""What is said to the control plane, and heard from it."""
