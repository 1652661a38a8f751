"""The pure decision core: a snapshot goes in, a decision comes out, nothing else happens.

Nothing here imports Django, Celery, a clock or a source of randomness. The live planner and the
simulator call the same functions.
"""
