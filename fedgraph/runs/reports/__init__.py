"""Reports of runs: live display, tables, sentences, charts, and comparisons of the models of peers.

:class:`Results` is the table behind terminal, page, notebook, pictures and JSON.
"""

from fedgraph.runs.reports import charts
from fedgraph.runs.reports.peer_comparison import COUNTS, FILE, MEASURES, PeerComparison
from fedgraph.runs.reports.plot import PICTURES, picture_of_runs
from fedgraph.runs.reports.progress import LiveDisplay, LogProgress, live_display
from fedgraph.runs.reports.results import Results
from fedgraph.runs.reports.tables import as_text, results_table
from fedgraph.runs.reports.words import extreme_clients, sentence

__all__ = [
    "COUNTS",
    "FILE",
    "MEASURES",
    "PICTURES",
    "LiveDisplay",
    "LogProgress",
    "PeerComparison",
    "Results",
    "as_text",
    "charts",
    "extreme_clients",
    "live_display",
    "picture_of_runs",
    "results_table",
    "sentence",
]
