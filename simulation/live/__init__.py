"""The live cluster's present state as something to simulate: captured once, kept with a study, replayed by
its runs."""
