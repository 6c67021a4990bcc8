"""The report of runs: one HTML page without anything from elsewhere, for one run or for several side by side."""

from fedgraph.runs.reports.page.write import Block, leave_report, place_of_report, report, write_page

__all__ = ["Block", "leave_report", "place_of_report", "report", "write_page"]
