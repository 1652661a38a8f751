"""The life of a job as pure functions: facts from rows in, instructions out.

`steps` says what the rows call for now, `events` what follows when something is told. Nothing here reads a
row, a clock or a file; `scheduling/services/lifecycle.py` reads the facts and carries the instructions out.
"""
