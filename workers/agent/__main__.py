"""`python -m workers.agent`."""

from workers.agent.command_line import app

app(prog_name="python -m workers.agent")
