"""Reports of runs: live display, tables, sentences, plots, and comparisons of the models of peers."""

from fedgraph.runs.reports.peer_comparison import COUNTS, FILE, MEASURES, PeerComparison
from fedgraph.runs.reports.plot import PICTURES, plot_runs
from fedgraph.runs.reports.progress import LiveDisplay, LogProgress, live_display
from fedgraph.runs.reports.words import as_text, extreme_clients, results_table, sentence

__all__ = [
    "COUNTS",
    "FILE",
    "MEASURES",
    "PICTURES",
    "LiveDisplay",
    "LogProgress",
    "PeerComparison",
    "as_text",
    "extreme_clients",
    "live_display",
    "plot_runs",
    "results_table",
    "sentence",
]
