"""Tables and figures of papers as data: every cell is an experiment, run once, shown next to the published value.

A table is described by its TOML file, and run with one command::

    fedgraph reproduce sfl-table2 --profile small
"""

from fedgraph.reproduce.command import reproduce
from fedgraph.reproduce.figures.columns import over_columns_of_file
from fedgraph.reproduce.figures.panels import panels
from fedgraph.reproduce.figures.peers import picture
from fedgraph.reproduce.numbers import NumberTable, markdown_line
from fedgraph.reproduce.result_file import ResultFile, ResultLine, merge_into
from fedgraph.reproduce.study import STUDY_EXPLAINED, StudyContext, StudyPage
from fedgraph.reproduce.table import EXPLAINED

__all__ = [
    "EXPLAINED",
    "STUDY_EXPLAINED",
    "NumberTable",
    "ResultFile",
    "ResultLine",
    "StudyContext",
    "StudyPage",
    "markdown_line",
    "merge_into",
    "over_columns_of_file",
    "panels",
    "picture",
    "reproduce",
]
