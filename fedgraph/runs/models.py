"""The final models of a finished run, from the run folder and from the nodes' state."""

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
from fedgraph.runs.reading import how_to_write_again
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import RunError
from fedgraph.support.files import run_state
from fedgraph.training import ClientState, state_folder


class RunModels(Mapping[str, dict[str, Tensor]]):
    """State dicts of the clients' final models, by client.

    Models of which layers stay with the client are read from the node's state: after a run on one machine it is in the
    run folder, under ``nodes``.

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
        When the method trains no models. A lookup raises it for a client that is unknown, was not measured, or whose
        model is not in the folder.
    """

    def __init__(self, folder: RunFolder, summary: Mapping[str, Any], experiment: Experiment) -> None:
        self.path, self._summary, self._experiment = folder.path, summary, experiment
        if not folder.models.is_file():
            if "models_per_round" in summary:
                raise RunError(f"{folder.models} was removed: {how_to_write_again(self.path)}")
            raise RunError(f"{self.path} has no models.safetensors: '{self._method}' does not train client models")
        self.at_server, self.shared = load_models(folder.models)

    def __getitem__(self, client: str) -> dict[str, Tensor]:
        if client not in self.at_server:
            raise RunError(f"{self.path} has no model of '{client}'; clients: {self.some()}")
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
        """Return the first five names as text."""
        return ", ".join([*list(self)[:5], *(["..."] if len(self) > 5 else [])])

    def module(self, client: str | None) -> nn.Module:
        """Return the model of a client, or the global one, as a module for scaled inputs."""
        model, state = self.stacked, self.state(client)
        module = model.twin()
        # The layout lacks counters and the second name of shared weights: they stay as constructed.
        module.load_state_dict({name: state[name] for name in model.layout.names}, strict=False)
        return module.eval()

    def row(self, client: str | None) -> Tensor:
        """Return the model of a client, or the global one, as a row ``[parameters]``."""
        return self.stacked.layout.row(self.state(client))

    def state(self, client: str | None) -> dict[str, Tensor]:
        """Return the complete state dict of the model of a client, or of the global one.

        Raises
        ------
        RunError
            When the run has no such model, lacks layers of it, or part of it is at the server.
        """
        if "no_module" in self._summary:
            raise RunError(f"{self.path} has no model to load as a module: {self._summary['no_module']}")
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
        """Name of the run in the nodes' state folders."""
        return str(self._with_nodes.get("run", RunFolder(self.path).run))

    def place(self, purpose: str) -> Path:
        """Return the path, relative to a state folder, of the nodes' state of the run for ``purpose``."""
        return run_state(Path(), self.run) / purpose

    def kept(self, purpose: str) -> Path:
        """Return the folder with the nodes' state: in the run folder, else in this machine's state folder."""
        return run_state(self._state_folder(purpose), self.run) / purpose

    def _state_folder(self, purpose: str) -> Path:
        in_run, on_machine = self.path / "nodes", state_folder()
        there = {folder: (run_state(folder, self.run) / purpose).is_dir() for folder in (in_run, on_machine)}
        return on_machine if there[on_machine] and not there[in_run] else in_run

    @property
    def _method(self) -> str:
        return str(self._summary["method"])

    @property
    def _with_nodes(self) -> Mapping[str, Any]:
        """Clients whose models are kept by nodes, with run and round; empty if the server has all models."""
        at_nodes: Mapping[str, Any] = self._summary.get("models_at_nodes", {})
        return at_nodes

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
            raise RunError(f"{self.path} was written by an older version, without the shapes of the task")
        task: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
        return TaskSpec(**task)

    def _kept(self, client: str) -> dict[str, Tensor]:
        """Read the model of a client from its node's state."""
        after, layout = self._with_nodes["round"], self.stacked.layout
        empty = {"parameters": torch.full((layout.num_parameters,), torch.nan), "round": torch.tensor(-1)}
        place, folder = self.place(ClientState.MEASURED), self._state_folder(ClientState.MEASURED)
        state = ClientState(folder, self.run, ClientState.MEASURED).load([client], after + 1, empty)
        if int(state["round"][0]) != after:
            raise RunError(
                f"{self.path}: the final model of '{client}' is at its node, since '{self._method}' does not send it: "
                f"copy the folder {place} of the node's state folder (node config state-dir, by default "
                f"~/.fedgraph/state) to {self.path / 'nodes' / place}, and load the run again; or work on the node, "
                "with a copy of this run folder"
            )
        return layout.row_state(state["parameters"][0])
