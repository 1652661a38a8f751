"""The live cluster's state as a study's input: captured once, stored with the study, read by its runs."""
