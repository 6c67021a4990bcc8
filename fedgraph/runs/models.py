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
from fedgraph.training import ClientState, state_folder


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
        """Return the model of a client, or the global one, as a module for scaled inputs."""
        model, state = self.stacked, self.state(client)
        module = model.twin()
        # What is not in the layout is as the constructor makes it: counters, and a weight that two layers share.
        module.load_state_dict({name: state[name] for name in model.layout.names}, strict=False)
        return module.eval()

    def row(self, client: str | None) -> Tensor:
        """Return the model of a client, or the global one, as a row ``[parameters]``."""
        return self.stacked.layout.row(self.state(client))

    def state(self, client: str | None) -> dict[str, Tensor]:
        """Return all layers of the model of a client, or of the global one.

        Raises
        ------
        RunError
            When the run has no such model, or lacks layers of it, or part of it is at the server.
        """
        if "no_module" in self._summary:
            raise RunError(f"{self.path} has no model that could be a module: {self._summary['no_module']}")
        state = self.shared if client is None else self[client]
        if state is None:
            raise RunError(f"'{self._method}' has no global model: name a client ({self.some()})")
        lacking = [name for name in self.stacked.layout.names if name not in state]
        if lacking:
            raise RunError(
                f"{self.path}: the global model of '{self._method}' lacks {', '.join(lacking)}, which stay with the "
                f"clients: name a client ({self.some()})"
            )
        return state

    @property
    def run(self) -> str:
        """Name of the run, as nodes call it."""
        return str(self._summary.get("run", self._with_nodes.get("run", self.path.name)))

    def place(self, purpose: str) -> Path:
        """Return the folder within a state folder in which nodes keep something of the run."""
        return Path(file_name(self.run)) / purpose

    def kept(self, purpose: str) -> Path:
        """Return the folder with what nodes keep: that in the run folder, else that of this machine's state folder."""
        here, there = (folder / self.place(purpose) for folder in (self.path / "nodes", state_folder()))
        return there if there.is_dir() and not here.is_dir() else here

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

    @cached_property
    def stacked(self) -> StackedModel:
        """The architecture."""
        return ModelChoice.of(self._experiment.model).build(self.task)

    @property
    def task(self) -> TaskSpec:
        """Inputs and outputs of the models."""
        written: dict[str, Any] | None = self._summary.get("task")
        if written is None:
            raise RunError(f"{self.path} was written by an older version, which did not keep the shapes of the task")
        task: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
        return TaskSpec(**task)

    def _kept(self, client: str) -> dict[str, Tensor]:
        """Read the model that the node of a client has kept."""
        after, layout = self._with_nodes["round"], self.stacked.layout
        empty = {"parameters": torch.full((layout.num_parameters,), torch.nan), "round": torch.tensor(-1)}
        place, kept = self.place(ClientState.MEASURED), self.kept(ClientState.MEASURED)
        found = ClientState(kept.parent.parent, self.run, ClientState.MEASURED).load([client], after + 1, empty)
        if int(found["round"][0]) != after:
            raise RunError(
                f"{self.path}: the model of '{client}' that was measured is with its node, since '{self._method}' does "
                f"not send it: copy the folder {place} of the node's state folder (node config state-dir, by default "
                f"~/.fedgraph/state) to {self.path / 'nodes' / place}, beside what other nodes have there, and load "
                "the run again; or work on the node, with a copy of this run folder"
            )
        return layout.row_state(found["parameters"][0])
