"""All gradient planners combined: the fastest plan that a job may use, and the plans that it beats."""
