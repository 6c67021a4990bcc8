"""The common base of methods of rounds and of phases: their description, and what a run needs to know of them."""

from __future__ import annotations

from typing import ClassVar

from fedgraph.support.settings import Configured, S

STOCK_CLIENT = "fedgraph.clients.engine.stock:StockClient"
"""Client class of the strategies of Flower."""


class Method(Configured[S]):
    """Base class of :class:`fedgraph.algorithms.Algorithm` and :class:`fedgraph.algorithms.phases.PhasedAlgorithm`.

    Attributes
    ----------
    name, title, needs, paper : str
        A short name, a title, the needs of a run beyond data and model, and the publication.
    default_client : str or type
        Client class of the engine, by dotted path or, in a notebook, as a class.
    own_models : bool
        Whether its own table describes the models, so that an experiment has no table ``[model]``.
    mixes_models : bool
        Whether all clients need the same architecture.
    defences : tuple of str
        Keys of ``[defence]`` that it supports.
    may_change : tuple of str
        Keys of its table that may change in a run that is resumed.
    expected_failures : dict of str to str
        Checks of ``fedgraph check`` that it fails by design, and the reasons.
    no_predictions : str
        Why its runs cannot predict new data, and what to do instead; empty if they can.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    paper: ClassVar[str] = ""
    default_client: ClassVar[str | type] = ""
    own_models: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = True
    defences: ClassVar[tuple[str, ...]] = ()
    may_change: ClassVar[tuple[str, ...]] = ()
    expected_failures: ClassVar[dict[str, str]] = {}
    no_predictions: ClassVar[str] = ""

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """Return whether results depend on the given client graph."""
        return True
