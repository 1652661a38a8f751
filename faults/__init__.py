"""Fault injection: seeded schedules of faults, their execution, and the invariants that must hold
afterwards."""
