"""Messages of FedNGM in an app without an experiment file: parameters of FedNGM and table_client_app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedgraph.support.errors import FedgraphError

_CONSENT = r"nodes have to consent to \(node config consent=([\w,]+);[^()]*\)"

_WORDS = (
    (r'leave the cell empty or add "[^"]*" to \[data\] missing', "leave the cell empty (NaN)"),
    (r"least-rows of \[data\.table-schema\]", 'FedNGM(schema={"least_rows": ...})'),
    (r"\(\[experiment\] min-clients\)", "(FedNGM(min_available_nodes=...))"),
    (r"\(\[experiment\] timeout\)", "(the timeout of FedNGM.start)"),
    (
        r"lower min-clients of \[fedngm\.merge\] and \[experiment\]",
        'lower FedNGM(merge={"min_clients": ...}) and min_available_nodes',
    ),
    (r'set source of \[fedngm\.scaling\], as to "shared-ranges"', 'set FedNGM(scaling={"source": "shared-ranges"})'),
    (r'set source = "summed-statistics"', 'set FedNGM(recovery={"source": "summed-statistics"})'),
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
    text = re.sub(_CONSENT, lambda found: f"clients have to consent to: {_consent(found[1])}", text)
    text = re.sub(r'\(node config consent = "(\w+)"\)', lambda found: f"({_consent(found[1])})", text)
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


def _consent(what: str) -> str:
    listed = ", ".join(f'"{each}"' for each in what.split(","))
    return f"table_client_app(consent=[{listed}])"


@contextmanager
def errors_in_app_words() -> Iterator[None]:
    """Rewrite the messages of errors in a ``with`` block for apps; their types stay."""
    try:
        yield
    except FedgraphError as error:
        error.args = (in_app_words(str(error)), *error.args[1:])
        raise
