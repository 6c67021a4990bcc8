"""Run any Flower app in this process, without Ray or a server."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedgraph.federation.grids import Failure, SimulationGrid
from fedgraph.starting.flower_app import FlowerApp, RunConfig, Value, read_run_config
from fedgraph.support.errors import FULL_ERRORS, AppError

ON_ERROR = ("reply", "raise")
_USUAL_NODES = 2
_SEEDS = 2**32


@dataclass
class Simulation:
    """A Flower app that was run by :func:`simulate`.

    Attributes
    ----------
    returned : object
        Result of the main function of the ServerApp, which Flower discards.
    context : Context
        Context of the ServerApp, with its run config and what it left in ``state``.
    contexts : list of Context
        Context of each node, in the order of nodes.
    failures : list of Failure
        Exceptions of the ClientApp: ``node_id``, ``partition``, ``message_type`` and ``error``.
    answered : int
        Messages that a ClientApp answered without an exception.
    """

    returned: Any = field(repr=False)
    context: Context = field(repr=False)
    contexts: list[Context] = field(repr=False)
    failures: list[Failure] = field(repr=False)
    answered: int

    @property
    def state(self) -> RecordDict:
        """The final ``context.state`` of the ServerApp."""
        return self.context.state


def simulate(
    server_app: ServerApp | str | Path,
    client_app: ClientApp | None = None,
    *,
    num_nodes: int | None = None,
    node_configs: Sequence[RunConfig] | None = None,
    run_config: RunConfig | None = None,
    on_error: str = "reply",
    seed: int | None = None,
) -> Simulation:
    """Run a Flower app in this process and thread, sequentially by node.

    Breakpoints work, also in clients; exceptions keep their traceback. Messages and replies are in the order of nodes,
    so results are bitwise reproducible if all randomness is seeded: ``seed`` seeds the global generators, but not
    generators that an app creates without a seed, such as ``numpy.random.default_rng()``. Raises AppError, before the
    start, for an invalid app, run config or node config, and RunError when the ServerApp waits for more nodes or
    replies than exist.

    Parameters
    ----------
    server_app : ServerApp, str or Path
        The ServerApp; or the folder of a Flower app, whose ``pyproject.toml`` names both components.
    client_app : ClientApp, optional
        The ClientApp that every node runs; left out with a folder.
    num_nodes : int, optional
        Number of nodes; by default as many as ``node_configs``, or 2, as ``flwr run`` has.
    node_configs : sequence of mapping, str, Path or sequence of str, optional
        For each node the keys of its node config in addition to ``partition-id`` and ``num-partitions``, or instead of
        these, in any form of ``run_config``: ``'client="mercy"'``.
    run_config : mapping, str, Path or sequence of str, optional
        Keys of the run config, in place of those of ``pyproject.toml``; also as ``flwr run --run-config`` takes them:
        ``"num-server-rounds=3 lr=0.1"``, or the path of a TOML file.
    on_error : {"reply", "raise"}, default "reply"
        Handling of exceptions of the ClientApp. "reply": it is logged, and the ServerApp receives an error reply, as in
        Flower. "raise": it is raised.
    seed : int, optional
        Seeds the global generators of Python, NumPy and PyTorch before anything of the app is imported.

    Examples
    --------
    >>> simulation = fedgraph.simulate(server_app, client_app, num_nodes=10)             # doctest: +SKIP
    >>> simulation.returned.evaluate_metrics_clientapp                                    # doctest: +SKIP
    >>> fedgraph.simulate("quickstart-pytorch", num_nodes=10, run_config="lr=0.1")        # doctest: +SKIP
    """
    if on_error not in ON_ERROR:
        raise AppError(f"on_error is {' or '.join(map(repr, ON_ERROR))}, not '{on_error}'")
    if isinstance(server_app, ClientApp):
        raise AppError("the first argument is the ServerApp, or the folder of an app, and the second the ClientApp")
    configs = _node_configs(num_nodes, node_configs)
    given = () if run_config is None else run_config
    if isinstance(server_app, ServerApp):
        if not isinstance(client_app, ClientApp):
            raise AppError("the second argument is the ClientApp that runs at every node")
        _seed(seed)
        return _run(server_app, client_app, configs, read_run_config(given), on_error)
    if client_app is not None:
        raise AppError("the folder of an app names its ClientApp itself: leave out client_app")
    app = FlowerApp.open(server_app)
    config = app.run_config(given)
    _seed(seed)
    with app.imported() as (server, client):
        return _run(server, client, configs, config, on_error)


def _run(
    server_app: ServerApp,
    client_app: ClientApp,
    node_configs: Sequence[Mapping[str, Value]],
    run_config: Mapping[str, Value],
    on_error: str,
) -> Simulation:
    _refuse_old(server_app, client_app)
    grid = SimulationGrid(client_app, node_configs, run_config, raise_errors=on_error == "raise")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config))
    with _kept_return(server_app) as returned, _errors_in_full(on_error):
        server_app(grid, context)
    return Simulation(
        returned[-1] if returned else None, context, list(grid.contexts.values()), grid.failures, grid.answered
    )


@contextmanager
def _errors_in_full(on_error: str) -> Iterator[None]:
    """Let nodes send full errors, as they are all in this process."""
    before = os.environ.get(FULL_ERRORS)
    os.environ[FULL_ERRORS] = "raise" if on_error == "raise" else "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FULL_ERRORS]
        else:
            os.environ[FULL_ERRORS] = before


def _node_configs(num_nodes: int | None, node_configs: Sequence[RunConfig] | None) -> list[dict[str, Value]]:
    """Return the whole node config of each node."""
    if node_configs is None:
        node_configs = [{}] * (_USUAL_NODES if num_nodes is None else num_nodes)
    if num_nodes is not None and num_nodes != len(node_configs):
        raise AppError(f"num_nodes is {num_nodes}, but node_configs has {len(node_configs)}")
    if not node_configs:
        raise AppError("a simulation needs at least one node")
    count = len(node_configs)
    return [
        {"partition-id": position, "num-partitions": count, **read_run_config(config, f"node_configs[{position}]")}
        for position, config in enumerate(node_configs)
    ]


def _refuse_old(server_app: ServerApp, client_app: ClientApp) -> None:
    """Raise AppError for apps of Flower's old API, whose server runs clients in threads, in any order."""
    # Nothing is refused for versions with other attributes.
    server, client = vars(server_app), vars(client_app)
    old = {
        "the ServerApp has a server_fn or a strategy of flwr.server": any(
            server.get(key) is not None for key in ("_server_fn", "_server", "_config", "_strategy", "_client_manager")
        ),
        "the ClientApp has a client_fn": client.get("_call") is not None,
    }
    for what, found in old.items():
        if found:
            raise AppError(
                f"{what}, of Flower's old API, which takes the results of clients in any order: write it with "
                "@app.main(), @app.train() and @app.evaluate() (Flower's guide 'Upgrade to Message API'), or use "
                "`flwr run`"
            )
    if server.get("_main", server_app) is None:
        raise AppError("the ServerApp has no main function: register one with @app.main()")


@contextmanager
def _kept_return(server_app: ServerApp) -> Iterator[list[Any]]:
    """Store the result of the main function of a ServerApp, which Flower discards."""
    returned: list[Any] = []
    main = vars(server_app).get("_main")
    if main is None:
        yield returned
        return
    server_app._main = lambda grid, context: returned.append(main(grid, context))
    try:
        yield returned
    finally:
        server_app._main = main


def _seed(seed: int | None) -> None:
    if seed is None:
        return
    if not 0 <= seed < _SEEDS:
        raise AppError(f"seed is {seed}; NumPy takes seeds from 0 to {_SEEDS - 1}")
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
