"""The client class of CNFGNN: encodes windows, trains with the server's outputs for them, and sends the gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedgraph.clients.engine.base import CohortClient, evaluate_splits, examples_of
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import as_windows
from fedgraph.messages import WorkReply
from fedgraph.models import parse_model
from fedgraph.simulations.forecasting.cnfgnn import CNFGNNSettings
from fedgraph.simulations.forecasting.context import (
    ContextForecaster,
    cohort_with_context,
    context_gradients,
    hidden_states,
)
from fedgraph.support.errors import ReplyError
from fedgraph.training import Cohort

_PURPOSE = "encoder"


class CNFGNNClient(CohortClient[CNFGNNSettings]):
    """Readings stay here, but the server, which has the decoder, can tell from gradients what ``sends`` says."""

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`."""
        return "its clients train with embeddings of the graph network"

    # Hidden states and gradients are asked for as trainings, as many as the server takes steps.
    trainings_per_round: ClassVar[int | None] = None
    sends: ClassVar[tuple[str, ...]] = (
        "the parameters of each client's model, whenever it has trained",
        "when each client's windows start",
        "hidden states of the windows that the server asks for",
        "gradients of the training loss with respect to what the server made of these: the readings that are forecast "
        "follow from them with a squared loss; with the absolute error, which forecasts were too high",
    )

    def reply(self) -> WorkReply:
        """Answer the kind of request that came; see :mod:`fedgraph.simulations.forecasting.cnfgnn`.

        Raises
        ------
        ReplyError
            For windows that a client does not have.
        """
        try:
            return self._reply()
        except IndexError as error:
            raise ReplyError(f"the request is malformed ({error})") from None

    def _reply(self) -> WorkReply:
        request, done = self.request, self.node.done
        if "examples" in request.shared:
            done.append(f"sent when {examples_of(self.cohort, SPLITS)} start")
            return WorkReply(request.clients, self._starts())
        if not any(name.startswith("graph/") for name in request.stacked):
            done.append(f"sent hidden states for round {request.round}")
            return WorkReply(request.clients, self._encoded())
        if "parameters" not in request.shared:
            done.append(f"sent gradients of round {request.round}")
            return WorkReply(request.clients, {"gradients": self._gradients()})
        return super().reply()

    @cached_property
    def model(self) -> ContextForecaster:
        """The forecaster."""
        model = ContextForecaster(parse_model(self.assignment.model), self.cohort.data.task)
        return model.compiled() if self.cohort.settings.compiles else model

    def evaluate(self) -> dict[str, Tensor]:
        """Return metrics of the models with the server's outputs for the windows."""
        splits = self.request.evaluate
        if not splits:
            return {}
        cohort = self._with_context(splits)
        if self.leaves_forecasts:
            self.leave_forecasts(cohort.predict(self.models, "test"))
        return evaluate_splits(self.assignment, cohort, self.models, splits)

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train on the windows of this round."""
        result = self.train_from(self.start(), cohort=self._with_context(("train",)))
        return {"parameters": result.parameters}, {"loss": result.loss}

    def _with_context(self, splits: Iterable[SplitName]) -> Cohort:
        windows, contexts = (
            {split: self.request.stacked[f"{kind}/{split}"] for split in splits} for kind in ("windows", "graph")
        )
        return cohort_with_context(self.cohort, self.model, windows, contexts)

    def _starts(self) -> dict[str, Tensor]:
        """When windows start, as long as the server has room for, which is where the longest client's end."""
        room = self.room()
        starts = {split: as_windows(self.cohort.data.splits[split]).starts() for split in SPLITS}
        return {
            f"starts/{split}": pad(found, (0, room[split] - found.shape[1]), value=-1)
            for split, found in starts.items()
        }

    def _encoded(self) -> dict[str, Tensor]:
        """Hidden states of the windows asked for; training windows are followed by requests for gradients."""
        splits = [split for split in SPLITS if f"windows/{split}" in self.request.stacked]
        if "train" in splits:
            self.remember(_PURPOSE, {"parameters": self.models})
        return {
            f"hidden/{split}": hidden_states(
                self.cohort, self.model, self.models, split, self.request.stacked[f"windows/{split}"]
            )
            for split in splits
        }

    def _gradients(self) -> Tensor:
        """Gradients of each client's mean loss with respect to the server's outputs for its windows."""
        request = self.request
        nothing = torch.full((self.model.layout.num_parameters,), torch.nan)
        state = self.node.state(request.run, _PURPOSE)
        models = state.load(request.clients, request.round + 1, {"parameters": nothing})["parameters"]
        if bool(models.isnan().any()):
            raise ReplyError("this node does not have the models of this round: was its state folder removed?")
        windows, contexts = self.request.stacked["windows/train"], self.request.stacked["graph/train"]
        return context_gradients(self.cohort, self.model, models, windows, contexts)
