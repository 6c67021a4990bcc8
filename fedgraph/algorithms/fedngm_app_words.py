"""Messages of FedNGM in an app without an experiment file: parameters of FedNGM and table_client_app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedgraph.support.errors import FedgraphError

_WORDS = (
    (r'leave the cell empty or add "[^"]*" to \[data\] missing', "leave the cell empty (NaN)"),
    (r"least-rows of \[data\.table-schema\]", 'FedNGM(schema={"least_rows": ...})'),
    (r"\(\[experiment\] min-clients\)", "(FedNGM(min_available_nodes=...))"),
    (r"\(\[experiment\] timeout\)", "(the timeout of FedNGM.start)"),
    (
        r"lower min-clients of \[fedngm\.merge\] and \[experiment\]",
        'lower FedNGM(merge={"min_clients": ...}) and min_available_nodes',
    ),
    (
        r'set source of \[fedngm\.scaling\], as to "shared-ranges"',
        'set FedNGM(scaling={"source": "shared-ranges"}) and table_client_app(consent=["ranges"])',
    ),
    (
        r'set source = "summed-statistics"',
        'set FedNGM(recovery={"source": "summed-statistics"}) and table_client_app(consent=["sums"])',
    ),
    (r'\[fedngm\.(\w+)\] (\w+) = ("[^"]*")', r'FedNGM(\1={"\2": \3})'),
    (r"\[fedngm\.(\w+)\]", r"FedNGM(\1={...})"),
    (r"\[fedngm\] (\w+)", r"FedNGM(\1=...)"),
    (r"under missing-codes", 'under FedNGM(schema={"missing_codes": ...})'),
    (r"under kinds", 'under FedNGM(schema={"kinds": ...})'),
    (r"target-neighbours", "target_neighbours"),
    (r"the experiment asks", "the strategy asks"),
    (
        r"(connected nodes can take part)(?=[\s\S]*(Invalid message type|function registered|is malformed))",
        r"\1 (each needs the ClientApp of table_client_app)",
    ),
    (r"; with \[clients\] public-keys only the right one can", ": set a different client in each node config"),
)


def in_app_words(text: str) -> str:
    """Replace keys of experiment files in a message by parameters of an app."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def errors_in_app_words() -> Iterator[None]:
    """Rewrite the messages of errors in a ``with`` block for apps; their types stay."""
    try:
        yield
    except FedgraphError as error:
        error.args = (in_app_words(str(error)), *error.args[1:])
        raise
