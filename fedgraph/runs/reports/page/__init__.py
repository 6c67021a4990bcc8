"""The report of runs: one HTML page without anything from elsewhere, for one run or for several side by side."""

from fedgraph.runs.reports.page.sections import Shown, feature_graph_chart
from fedgraph.runs.reports.page.write import COMPARISON, REPORT, Block, leave_report, write_page, write_report

__all__ = [
    "COMPARISON",
    "REPORT",
    "Block",
    "Shown",
    "feature_graph_chart",
    "leave_report",
    "write_page",
    "write_report",
]
