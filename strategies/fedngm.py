"""FedNGM in any Flower app: clients with data frames learn one probabilistic model of their common features.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models. https://arxiv.org/abs/2309.11680
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgraph.algorithms import fedngm
from fedgraph.algorithms.fedngm_app_words import errors_in_app_words, in_app_words
from fedgraph.algorithms.fedngm_results import lacking_columns
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.algorithms.phases import PhaseRun
from fedgraph.data.schema import Agreement
from fedgraph.data.tables import ClientTableSettings, FrameTables
from fedgraph.federation import RollCall
from fedgraph.graph import FeatureGraph
from fedgraph.messages import to_record
from fedgraph.messages.queries import ask_for_personal_models, personal_model
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.app_queries import ask_clients, connected_nodes
from fedgraph.strategies.engine.phases import PhasesPlan, PhasesRun
from fedgraph.strategies.engine.strategy import PhasedStrategy
from fedgraph.support.errors import RunError
from fedgraph.support.files import write_atomically
from fedgraph.support.settings import from_keywords

if TYPE_CHECKING:
    from fedgraph.graphical import NeuralGraphicalModel

log = logging.getLogger("fedgraph")

_CLIENT = "fedgraph.clients.table_app"
_MODEL = "graphical-model.safetensors"


class _InAnApp(fedngm.FedNGM):
    """The algorithm, with a warning about columns that not all clients have, as there are no result files."""

    def agreed(self, agreement: Agreement) -> None:
        super().agreed(agreement)
        if lacking := lacking_columns(agreement):
            log.warning("%s", lacking)


_InAnApp.__name__ = fedngm.FedNGM.__name__  # for messages


class FedNGM(PhasedStrategy):
    """Federated neural graphical models of clients whose app is :func:`fedgraph.clients.table_client_app`.

    Parameters
    ----------
    schema : mapping, optional
        The table ``[data.table-schema]``, such as ``{"kinds": {"pain": "ordinal"}, "drop": ["name"]}``; it is sent to
        every client.
    public : data frame, optional
        Public rows, for settings that use them.
    shares : tuple of float, default (0.7, 0.1, 0.2)
        Fractions of each client's rows for training, validation and test.
    seed : int, default 0
        Seed.
    min_available_nodes : int, default 2
        Minimum number of nodes, for which the strategy waits.
    folder : path, optional
        Folder of model, graph and dependencies, from which a stopped strategy resumes, while a finished one begins
        anew; by default a temporary folder.
    **settings
        The keys of ``[fedngm]``, with underscores; its tables as mappings: ``ngm={"epochs": 100}``,
        ``recovery={"method": "ges"}``, ``scaling={"source": "shared-ranges"}``.

    Attributes
    ----------
    model : NeuralGraphicalModel
        The global model, after :meth:`start`: ``predict``, ``conditional``, ``sample``, ``graph_``.
    client_models : dict of str to NeuralGraphicalModel
        Personal models with private features, after :meth:`fetch_models`.
    metrics : DataFrame
        Metrics of predicted targets by client: ``test/<target>-<measure>``, with ``-local`` by the client's own model,
        with ``-personal`` by its personal one.

    Examples
    --------
    In a ServerApp::

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = FedNGM(scaling={"source": "shared-ranges"})
            strategy.start(grid)
            strategy.model.conditional({"age": 75, "smoker": "yes"}, ["pressure"])
            strategy.model.sample(1000), strategy.model.graph_
    """

    algorithm_class = fedngm.FedNGM

    def __init__(
        self,
        *,
        schema: Mapping[str, Any] | None = None,
        public: Any = None,
        shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
        seed: int = 0,
        min_available_nodes: int = 2,
        folder: str | Path | None = None,
        **settings: Any,
    ) -> None:
        own = [name for name in signature(FedNGM).parameters if name != "settings"]
        self.settings = from_keywords(FedNGMSettings, settings, "FedNGM", own)
        about = {str(key).replace("_", "-"): value for key, value in (schema or {}).items()}
        table = {"shares": tuple(shares), "partition_seed": seed, "table_schema": about}
        self._table = from_keywords(ClientTableSettings, table, "FedNGM")
        self.seed, self.min_available_nodes, self._public = seed, min_available_nodes, public
        self._temporary = TemporaryDirectory(prefix="fedgraph-") if folder is None else None
        self.folder = Path(folder or Path(self._temporary.name if self._temporary else "", "fedngm")).absolute()
        self.client_models: dict[str, NeuralGraphicalModel] = {}
        self._names_present: tuple[str, ...] = ()
        self._names: dict[int, str] = {}

    @property
    def graph(self) -> FeatureGraph:
        """The graph of the common features."""
        return self.model.graph_

    @property
    def history(self) -> Any:
        """The metrics as a data frame of ``round``, ``client``, ``metric`` and ``value``."""
        history = self.metrics.melt(ignore_index=False, var_name="metric").reset_index(names="client")
        history.insert(0, "round", self.settings.rounds)
        return history

    def run(self, grid: Grid, timeout: float, train_config: ConfigRecord | None) -> Result:
        """Run all phases: features, graphs, models, a global model, and personal ones."""
        from fedgraph.graphical import NeuralGraphicalModel  # imports scikit-learn, which runs do not need

        connected_nodes(grid, self.min_available_nodes, timeout)
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(self.folder)
        if not folder.checkpoint.is_file():
            folder.name_run(f"{folder.name}-{secrets.token_hex(6)}")
        running = PhasesRun(_InAnApp(self.settings), self._plan(timeout))
        with errors_in_app_words():
            outcome = running.run(grid)
        self._names_present = outcome.names
        for name, reason in running.absent.items():
            log.error("client '%s' was excluded: %s", name, in_app_words(reason))
        for note in outcome.facts.get("notes", ()):
            log.warning("%s", in_app_words(note))
        import pandas as pd

        self.metrics = pd.DataFrame({name: values.numpy() for name, values in outcome.metrics.items()}, outcome.names)
        self.model = NeuralGraphicalModel.load(self.folder / _MODEL)
        folder.checkpoint.unlink(missing_ok=True)
        means = MetricRecord({name: float(values.nanmean()) for name, values in outcome.metrics.items()})
        return Result(arrays=to_record(outcome.arrays), evaluate_metrics_serverapp={1: means})

    def fetch_models(self, grid: Grid, timeout: float = 3600) -> dict[str, NeuralGraphicalModel]:
        """Fetch the personal models of clients whose app has ``share_models=True``.

        Returns the models by client, also stored in :attr:`client_models`. Raises RunError before :meth:`start`.
        """
        from fedgraph.graphical import NeuralGraphicalModel

        if not self._names_present:
            raise RunError("no models yet: call start first")
        content = ask_for_personal_models(RunFolder(self.folder).run)
        found = ask_clients(grid, sorted(grid.get_node_ids()), content, "query", personal_model, self._names, timeout)
        self.client_models = {}
        for name, model in found.values():
            if name not in self._names_present:
                log.error("going on without the model of client '%s', which did not take part", name)
                continue
            path = self.folder / "personal.safetensors"
            write_atomically(path, model)
            try:
                self.client_models[name] = NeuralGraphicalModel.load(path)
            except RunError as error:
                log.error("going on without the model of client '%s': %s", name, error)
            path.unlink()
        return self.client_models

    def _plan(self, timeout: float) -> PhasesPlan:
        """Return the plan of the phases, as in an experiment."""
        experiment = {"seed": self.seed, "method": self.settings.as_table(nulls=True), "table": self._table.as_table()}
        return PhasesPlan(
            client=_CLIENT,
            experiment=json.dumps(experiment),
            roll_call=RollCall(self.min_available_nodes, wait=min(timeout, 60.0)),
            timeout=timeout,
            folder=RunFolder(self.folder),
            run=PhaseRun(self.seed, self._table, lambda: FrameTables(self._table, public=self._public)),
        )
