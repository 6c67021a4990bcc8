"""The models of a finished run, as they were measured: from the run folder, and from what nodes keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph.experiment import Experiment
from fedgraph.models import ModelChoice, StackedModel, TaskSpec
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import RunError
from fedgraph.support.files import file_name
from fedgraph.training import ClientState


class RunModels(Mapping[str, dict[str, Tensor]]):
    """State dicts of the clients' models, by client, each as it was measured at the end of the run.

    Where the server does not have a model, because layers of it or all of it stay with the client, it is what the
    client's node has kept: in the run folder below ``nodes``, after a run on one machine.

    Parameters
    ----------
    folder : RunFolder
        The run folder.
    summary : mapping
        Its ``summary.json``.
    experiment : Experiment
        The resolved experiment.

    Raises
    ------
    RunError
        When the method trains no models; when a model is looked up, for a client that is unknown, was not measured, or
        whose model is not in the folder.
    """

    def __init__(self, folder: RunFolder, summary: Mapping[str, Any], experiment: Experiment) -> None:
        self.path, self._summary, self._experiment = folder.path, summary, experiment
        if not folder.models.is_file():
            raise RunError(f"{self.path} has no models.safetensors: '{self._method}' does not train models of clients")
        self.at_server, self.shared = load_models(folder.models)

    def __getitem__(self, client: str) -> dict[str, Tensor]:
        if client not in self.at_server:
            raise RunError(f"{self.path} has no model of '{client}'; it has those of {self.some()}")
        if not self._with_nodes or (client not in self._with_nodes["clients"] and client in self._measured):
            return self.at_server[client]
        if client not in self._with_nodes["clients"]:
            raise RunError(
                f"{self.path}: the model of '{client}' was not measured at the end of the run, and '{self._method}' "
                "leaves it, or layers of it, with the client's node"
            )
        return self._kept(client)

    def __contains__(self, client: object) -> bool:
        return client in self.at_server

    def __iter__(self) -> Iterator[str]:
        return iter(self.at_server)

    def __len__(self) -> int:
        return len(self.at_server)

    def some(self) -> str:
        """Return the first names."""
        return ", ".join([*list(self)[:5], *(["..."] if len(self) > 5 else [])])

    def module(self, client: str | None) -> nn.Module:
        """Return the model of a client, or the global one, as a module; see :meth:`fedgraph.Run.module`."""
        if "no_module" in self._summary:
            raise RunError(f"{self.path} has no model that could be a module: {self._summary['no_module']}")
        state = self.shared if client is None else self[client]
        if state is None:
            raise RunError(f"'{self._method}' has no global model: name a client ({self.some()})")
        model = self._model(client)
        lacking = [name for name in model.layout.names if name not in state]
        if lacking:
            raise RunError(
                f"{self.path}: the global model of '{self._method}' lacks {', '.join(lacking)}, which stay with the "
                f"clients: name a client ({self.some()})"
            )
        module = model.twin()
        # What is not in the layout is as the constructor makes it: counters, and a weight that two layers share.
        module.load_state_dict({name: state[name] for name in model.layout.names}, strict=False)
        return module.eval()

    @property
    def _method(self) -> str:
        return str(self._summary["method"])

    @property
    def _with_nodes(self) -> Mapping[str, Any]:
        """Of which clients nodes keep models, of which run and round; empty where the server has all."""
        found: Mapping[str, Any] = self._summary.get("models_at_nodes", {})
        return found

    @cached_property
    def _measured(self) -> set[str]:
        """The clients that were measured at the end."""
        values = (each for metrics in self._summary["per_client"].values() for each in metrics.values())
        return {client for of_clients in values for client, value in of_clients.items() if value is not None}

    def _model(self, client: str | None) -> StackedModel:
        written: dict[str, Any] | None = self._summary.get("task")
        if written is None:
            raise RunError(f"{self.path} was written by an older version, which did not keep the shapes of the task")
        task: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
        return ModelChoice.of(self._experiment.model).build(TaskSpec(**task))

    def _kept(self, client: str) -> dict[str, Tensor]:
        """Read the model that the node of a client has kept."""
        run, after = str(self._with_nodes["run"]), self._with_nodes["round"]
        layout = self._model(client).layout
        empty = {"parameters": torch.full((layout.num_parameters,), torch.nan), "round": torch.tensor(-1)}
        found = ClientState(self.path / "nodes", run, ClientState.MEASURED).load([client], after + 1, empty)
        if int(found["round"][0]) != after:
            place = Path(file_name(run)) / ClientState.MEASURED
            raise RunError(
                f"{self.path}: the model of '{client}' that was measured is with its node, since '{self._method}' does "
                f"not send it: copy the folder {place} of the node's state folder (node config state-dir, by default "
                f"~/.fedgraph/state) to {self.path / 'nodes' / place}, beside what other nodes have there, and load "
                "the run again"
            )
        return layout.row_state(found["parameters"][0])
