"""``python -m fedgraph``, the command ``fedgraph`` of this interpreter's environment."""

from fedgraph.cli import app

app(prog_name="fedgraph")
