"""The pure decision core: a function of a snapshot that returns a decision and has no other effect.

No file here imports Django, Celery, a clock or a source of randomness. The live planner and the simulator
call the same functions.
"""
