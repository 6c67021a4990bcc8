"""``python -m fedgraph``, the command ``fedgraph`` of this interpreter's environment."""

from fedgraph.commands.cli import app

app(prog_name="fedgraph")
