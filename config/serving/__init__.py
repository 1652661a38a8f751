"""HTTP serving of the control plane, in which slow or numerous callers do not delay others."""
