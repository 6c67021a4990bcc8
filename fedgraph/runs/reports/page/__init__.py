"""The report of one or several runs: a self-contained HTML page."""

from fedgraph.runs.reports.page.write import Block, leave_report, place_of_report, report, write_page

__all__ = ["Block", "leave_report", "place_of_report", "report", "write_page"]
