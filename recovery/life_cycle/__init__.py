"""The life cycle of a recovery as pure functions from facts to instructions.

No function here queries a row, a clock or a file. Times are seconds by the caller's clock.
"""
