"""The life cycle of a job as pure functions: from facts in database rows to instructions.

`steps` derives the instructions that are due from the rows; `events` derives those that follow a report, such
as a worker's error. No function here reads a row, a clock or a file:
`scheduling/services/generations/lifecycle.py` reads the facts and carries out the instructions.
"""
