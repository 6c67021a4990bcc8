"""Which engine the container tests use: the one that runs here, or else one that is started for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from containers import beside_the_system
from containers.engine import Engine, NoEngineError

KEPT = Path(os.environ.get("FEDGRAPH_ENGINE", "/var/cache/fedgraph-engine"))


@contextmanager
def engine_at_hand() -> Iterator[Engine]:
    """Yield an engine; one that is started for the tests ends with the block.

    What such an engine needs and makes, images included, is kept in the folder ``FEDGRAPH_ENGINE``.

    Raises
    ------
    NoEngineError
        When there is none, with what is missing.
    """
    running = Engine(dict(os.environ))
    lacking = running.lacks()
    if not lacking:
        yield running
        return
    obstacle = beside_the_system.obstacle()
    if obstacle:
        raise NoEngineError(f"{lacking}, and none can be started: {obstacle}")
    with beside_the_system.engine(KEPT) as engine:
        yield engine
