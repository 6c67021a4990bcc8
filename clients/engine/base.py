"""Base class of clients of methods of rounds: evaluate received models, train them, return them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.disclosure import check_covered
from fedgraph.clients.engine.frozen_layers import frozen_layers
from fedgraph.clients.engine.node import Node
from fedgraph.data import SPLITS, SplitName
from fedgraph.messages import WorkReply, WorkRequest
from fedgraph.messages.apps import STOCK_TERMS
from fedgraph.messages.frozen_layers import lacking_reply, named
from fedgraph.models import PersonalLayers, finite_rows
from fedgraph.support.errors import ReplyError, counted, quoted
from fedgraph.support.settings import Configured, S
from fedgraph.training import (
    ClientState,
    Cohort,
    GradientTerm,
    TrainResult,
    TrainSettings,
    fresh_state,
    mean_of,
)
from fedgraph.training.forecasting import forecast_errors, write_forecasts

_TYPES = (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8)
_MOST_EVALUATIONS = 5
"""Most evaluations in a round without training: models of the last round, the best ones, their mean, forecasts."""

_MOST = 1 << 22
"""Maximum number of examples to which a node pads its answers, five-minute windows of forty years."""


def evaluate_splits(
    assignment: Assignment, cohort: Cohort, models: Tensor, splits: Iterable[SplitName], least_unseen: int = 1
) -> dict[str, Tensor]:
    """Evaluate models ``[clients, parameters]``; return metrics as ``<split>/<metric>``, each ``[clients]``.

    ``least_unseen`` : fewest examples of which the accuracy on classes without training examples is told.
    """
    horizons, missing_as = assignment.horizons_of(cohort.data.task), assignment.missing_as
    unseen = assignment.unseen_classes
    return {
        f"{split}/{metric}": values
        for split in splits
        for metric, values in cohort.evaluate(
            models, split, horizons, missing_as=missing_as, unseen_classes=unseen, least_unseen=least_unseen
        ).items()
    }


def evaluate_forecasts(
    assignment: Assignment, cohort: Cohort, forecasts: Mapping[SplitName, Tensor]
) -> dict[str, Tensor]:
    """Evaluate forecasts ``[clients, examples, steps]``, scaled as targets; return metrics as above."""
    horizons, missing_as = assignment.horizons_of(cohort.data.task), assignment.missing_as
    return {
        f"{split}/{metric}": values
        for split, found in forecasts.items()
        for metric, values in forecast_errors(cohort, found, split, horizons, missing_as).items()
    }


def examples_of(cohort: Cohort, splits: Iterable[SplitName]) -> str:
    """Describe the number of examples of splits, for ``Node.done``."""
    examples = sum(int(cohort.data.splits[split].num_examples.sum()) for split in splits)
    return counted(examples, "window" if cohort.data.task.kind == "forecast" else "row")


def trained_on(cohort: Cohort, server_round: int) -> str:
    """Describe a training, for ``Node.done``."""
    return f"trained round {server_round} on {examples_of(cohort, ['train'])}"


def evaluated_after(splits: Iterable[SplitName], server_round: int) -> str:
    """Describe an evaluation, for ``Node.done``."""
    return f"evaluated {' and '.join(splits)} after round {server_round}"


def train_cohort(
    node: Node,
    cohort: Cohort,
    run: str,
    server_round: int,
    keep_from: int,
    start: Tensor,
    gradient_term: GradientTerm | None,
    purpose: str = "optimiser",
) -> TrainResult:
    """Train from ``start`` ``[clients, parameters]``; moments of the optimiser are kept if the experiment says so.

    The moments stay on the node, under ``purpose``, for each round from ``keep_from`` that a resumed run may return to.
    Separate trainings need separate purposes.
    """
    if not cohort.settings.keep_optimizer:
        return cohort.train(start, server_round, gradient_term)
    clients, state = cohort.data.names, node.state(run, purpose)
    fresh = fresh_state(cohort.settings, 1, cohort.model.layout.num_trainable)
    moments = state.load(clients, server_round, {name: tensor[0] for name, tensor in fresh.items()})
    result = cohort.train(start, server_round, gradient_term, moments)
    # A client whose training diverged keeps its previous moments.
    finite = finite_rows(result.parameters)
    kept = {
        name: torch.where(finite.view(-1, *[1] * (value.dim() - 1)), value, moments[name])
        for name, value in result.optimizer_state.items()
    }
    state.save(clients, server_round, kept, keep_from)
    return result


class CohortClient(Configured[S]):
    """Serves the clients of one node for one request; methods mostly override ``gradient_term``.

    Parameters
    ----------
    node : Node
        The node.
    request : WorkRequest
        The request, with its tensors.

    Attributes
    ----------
    cohort : Cohort
        The requested clients.
    settings : Settings
        Settings of the method, of the class in brackets: ``CohortClient[SFLSettings]``.
    joins_frozen : bool
        Whether a request may omit frozen layers, which are sent to the node once.
    frozen : Tensor or None
        Those of the model, ``[numbers]``, if the request omits them.
    kept_models : tuple of str
        Clients whose models, as evaluated for this request, are kept on the node.
    sends, keeps : tuple of str
        Descriptions of the data that the server receives and of those that stay on the node, shown by ``fedgraph
        node``.
    divides : bool
        Whether data are divided into training, validation and test.
    trainings_per_round : int or None
        Most different requests for training of a client, per agreed round, that a site with an agreement answers over
        all runs; None for any number.
    terms : frozenset of str
        Numbers from stock strategies (:data:`fedgraph.messages.apps.STOCK_TERMS`) that the class uses in training.
    """

    divides: ClassVar[bool] = True
    trainings_per_round: ClassVar[int | None] = 1
    terms: ClassVar[frozenset[str]] = frozenset()
    sends: ClassVar[tuple[str, ...]] = ("the parameters of each client's model after each training",)
    keeps: ClassVar[tuple[str, ...]] = ("labels", "the scales of the data", "moments of the optimiser")
    joins_frozen: ClassVar[bool] = True
    kept_models: tuple[str, ...] = ()
    frozen: Tensor | None = None

    def __init__(self, node: Node, request: WorkRequest) -> None:
        self.node = node
        self.request = request
        self.assignment = Assignment.of(request.experiment)
        self.settings = cast(S, self.assignment.method_as(self.settings_type))

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """Return why ``[train] function`` is not supported, given the method's table; empty if it is."""
        return ""

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp.

        Raises ReplyError for clients that this node does not host, and for duplicates.
        """
        request = WorkRequest.unpack(message.content)
        if len(set(request.clients)) < len(request.clients):
            raise ReplyError(f"duplicate clients in the request: {quoted(request.clients)}")
        hosted = node.hosted(Assignment.of(request.experiment))
        known = set(hosted)
        unknown_names = [name for name in request.clients if name not in known]
        if unknown_names:
            raise ReplyError(f"this node hosts {', '.join(hosted)}, not {', '.join(unknown_names[:8])}")
        for name, tensor in [*request.stacked.items(), *request.shared.items()]:
            if tensor.dtype not in _TYPES:
                raise ReplyError(f"'{name}' of the request is of type {tensor.dtype}")
        for name in sorted(STOCK_TERMS.keys() & request.stacked.keys() - cls.terms):
            raise ReplyError(
                f"the strategy requires {STOCK_TERMS[name]}, which {cls.__name__} does not implement: derive the class "
                "from fedgraph.clients.engine.stock:StockClient"
            )
        node = replace(node, attempts=request.attempts)
        served = cls(node, request)
        fingerprint = named(message.content)
        if fingerprint:
            served.frozen = frozen_layers(node, request.run, message.content, fingerprint)
            if served.frozen is None:
                node.done.append("requested the frozen layers of the model")
                return lacking_reply()
            if len(served.frozen) != served.layers.fixed.num_parameters:
                raise ReplyError("the frozen layers of the request do not match the model of this node")
        predicted: tuple[SplitName, ...] = ("test",) if request.predict else ()
        check_covered(cls, served.assignment, evaluated=(*request.evaluate, *predicted))
        what, most = ("training", cls.trainings_per_round) if request.train else ("evaluation", _MOST_EVALUATIONS)
        if most is not None:
            before = request.round + (not request.train)
            node.record_work(request.run, what, request.clients, message.content, before, most)
        node.keep_preprocessing(request.run, request.experiment, request.clients)
        return served.with_states(served.reply()).pack()

    def reply(self) -> WorkReply:
        """Evaluate, then train, or predict, as requested."""
        request, done = self.request, self.node.done
        if request.predict:
            done.append("sent predictions of the test examples")
            return WorkReply(request.clients, self.predict())
        metrics = self.evaluate_after(request.round - request.train)
        if not request.train:
            return WorkReply(request.clients, {}, metrics, self.kept_models)
        if request.mean and self.sums:
            trained = self.cohort.train_mean(self.start(), self._examples, request.round, self.gradient_term())
            done.append(trained_on(self.cohort, request.round))
            return self.averaged(trained.mean, trained.finite, {**metrics, "loss": trained.loss})
        stacked, training = self.train()
        done.append(trained_on(self.cohort, request.round))
        stacked, metrics = self._without_frozen(stacked), {**metrics, **training}
        if request.mean:
            return self.averaged(*mean_of(stacked["parameters"], self._examples), metrics)
        return WorkReply(request.clients, stacked, metrics, self.kept_models)

    def with_states(self, reply: WorkReply) -> WorkReply:
        """Add what the server needs to notice that clients' state is gone: its rounds, and what was saved."""
        request, names = self.request, set(reply.clients)
        states = {purpose: state for (run, purpose), state in self.node.states.items() if run == request.run}
        found = {
            purpose: tuple(state.found[name] for name in reply.clients)
            for purpose, state in states.items()
            if state.found.keys() >= names
        }
        saved = {purpose: state.saved for purpose, state in states.items() if state.saved is not None}
        return replace(reply, found=found, saved=saved)

    def _without_frozen(self, stacked: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remove frozen layers from whole models."""
        parameters = stacked.get("parameters")
        if self.frozen is None or parameters is None or parameters.shape[1] != self.layers.whole.num_parameters:
            return stacked
        return {**stacked, "parameters": self.layers.split(parameters)[0]}

    @property
    def sums(self) -> bool:
        """Whether only the mean of trained models is needed, which saves memory."""
        return self.frozen is None and not self.cohort.settings.keep_optimizer and self._trains_as_usual

    @property
    def _trains_as_usual(self) -> bool:
        return type(self).train is CohortClient.train

    @property
    def _examples(self) -> Tensor:
        """Numbers of training examples, float32 ``[clients]``."""
        return self.cohort.data.splits["train"].num_examples.float()

    def averaged(self, mean: Tensor, finite: Tensor, metrics: dict[str, Tensor]) -> WorkReply:
        """Reply with the mean of models, weighted by training examples.

        Models that are not ``finite`` are excluded, and their clients are named. Raises ReplyError when none remains.
        """
        examples, clients = self._examples, self.request.clients
        weighted = bool(examples[finite].any())
        if not finite.any() or (examples.any() and not weighted):
            raise ReplyError(f"training diverged at {', '.join(clients)}: NaN or infinite parameters")
        # A node without examples returns the received model, with weight 0.
        mean = mean if weighted else self._without_frozen({"parameters": self.models[:1]})["parameters"][0]
        failed = {
            name: "training diverged: NaN or infinite parameters"
            for name, good in zip(clients, finite.tolist(), strict=True)
            if not good
        }
        return WorkReply(clients, {}, metrics, self.kept_models, {"parameters": mean}, failed)

    def evaluate_after(self, server_round: int) -> dict[str, Tensor]:
        """Evaluate the models after a round, and note it in ``Node.done``.

        Evaluated models that the server does not have are kept, and can be fetched after the run.
        """
        metrics = self.evaluate()
        if self.request.evaluate:
            self.node.done.append(evaluated_after(self.request.evaluate, server_round))
            self.kept_models = self._keep_measured(server_round)
        return metrics

    def _keep_measured(self, server_round: int) -> tuple[str, ...]:
        """Keep the models evaluated last on this node; return the clients for which the server has another."""
        request = self.request
        if "parameters" not in {*request.stacked, *request.shared}:
            return ()
        models, known = self._measured_models, self.at_server()
        if models is known:
            # As in most methods: nothing to compare.
            return ()
        other = models.new_ones(len(models), dtype=torch.bool)
        if models.shape == known.shape:
            other = (models != known).any(dim=1)
        if bool(other.any()):
            after = torch.full((len(models),), server_round)
            # Only the last ones are read.
            self.node.state(request.run, ClientState.MEASURED).save(
                request.clients, server_round, {"parameters": models, "round": after}, keep_from=server_round + 1
            )
        return tuple(name for name, differs in zip(request.clients, other.tolist(), strict=True) if differs)

    @cached_property
    def cohort(self) -> Cohort:
        """The requested clients."""
        return self.node.cohort(self.request.experiment, self.request.clients)

    @cached_property
    def models(self) -> Tensor:
        """The clients' models ``[clients, parameters]`` before the training of this request."""
        return self.received()

    def received(self) -> Tensor:
        """Return the models to work with, ``[clients, parameters]``; by default those of the request."""
        return self.completed(self.sent)

    @cached_property
    def layers(self) -> PersonalLayers:
        """The columns of a model that the server sends, and those that stay here or are sent once."""
        return PersonalLayers.of(self.cohort.model.layout, (), self.frozen is not None)

    def completed(self, shared: Tensor) -> Tensor:
        """Add frozen layers to the server's part of models, ``[models, columns]``."""
        return self.layers.join(shared, shared[:, :0], self.frozen) if self.frozen is not None else shared

    def at_server(self) -> Tensor:
        """Return the models that the server has when these are evaluated, ``[clients, columns]``: those it sent."""
        return self.completed(self.sent)

    @cached_property
    def sent(self) -> Tensor:
        """The models of the request, ``[clients, columns]``, one row per client or one for all.

        Raises ReplyError when they are missing or invalid.
        """
        own = "parameters" in self.request.stacked
        found = (self.request.stacked if own else self.request.shared)["parameters"]
        if found.dtype != torch.float32 or found.dim() != 1 + own:
            raise ReplyError(f"'parameters' of the request are {found.dtype} {list(found.shape)}; expected a model")
        return found if own else found.expand(len(self.request.clients), -1)

    def room(self) -> dict[SplitName, int]:
        """Return the number of examples of each split to which returned tensors are padded, from the request.

        Raises ReplyError when it is missing or too large.
        """
        examples = self.request.shared["examples"]
        if (
            examples.dtype != torch.int64
            or examples.shape != (len(SPLITS),)
            or not bool(((examples >= 0) & (examples <= _MOST)).all())
        ):
            raise ReplyError(f"the request needs a number of examples for padding, at most {_MOST:,}")
        return dict(zip(SPLITS, examples.tolist(), strict=True))

    def evaluate(self) -> dict[str, Tensor]:
        """Return metrics of the models as ``<split>/<metric>``, each ``[clients]``."""
        if not self.request.evaluate:
            return {}
        models = self._measured_models
        if self.leaves_forecasts:
            self.leave_forecasts(self.cohort.predict(models, "test"))
        return evaluate_splits(self.assignment, self.cohort, models, self.request.evaluate, self.node.least_rows)

    @property
    def leaves_forecasts(self) -> bool:
        """Whether to write forecasts of the test windows on this node."""
        return self.assignment.forecasts is not None and "test" in self.request.evaluate

    def leave_forecasts(self, forecasts: Tensor) -> None:
        """Write forecasts ``[clients, windows, steps]`` of the test windows in the unit of readings on this node."""
        folder = self.node.forecast_folder(self.request.run)
        write_forecasts(self.cohort, forecasts, "test", folder, self.assignment.forecasts or "csv")

    def evaluated(self) -> Tensor:
        """Return the models to evaluate, ``[clients, parameters]``; by default the current ones."""
        return self.models

    @cached_property
    def _measured_models(self) -> Tensor:
        return self.evaluated()

    def predict(self) -> dict[str, Tensor]:
        """Return predicted and true classes of the test examples, int32 ``[clients, examples]``."""
        predicted, targets = self.cohort.classify(self.evaluated(), "test")
        return {"predicted": predicted.int(), "targets": targets.int()}

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train; return tensors ``[clients, ...]`` to send back, and numbers per client."""
        result = self.train_from(self.start(), self.gradient_term())
        return {"parameters": result.parameters}, {"loss": result.loss}

    def train_from(
        self,
        start: Tensor,
        gradient_term: GradientTerm | None = None,
        cohort: Cohort | None = None,
        purpose: str = "optimiser",
    ) -> TrainResult:
        """Run one round of local training.

        Parameters
        ----------
        start : Tensor
            Initial models, ``[clients, parameters]``.
        gradient_term : GradientTerm, optional
            Term added to the gradient of the local loss.
        cohort : Cohort, optional
            Cohort to train instead of the requested clients, for example with other settings.
        purpose : str, optional
            Name under which moments of the optimiser are kept, see :func:`train_cohort`.
        """
        request = self.request
        trained = self.cohort if cohort is None else cohort
        result = train_cohort(
            self.node, trained, request.run, request.round, request.keep_from, start, gradient_term, purpose
        )
        if self.frozen is not None and not bool((self.layers.fixed_of(result.parameters) == self.frozen).all()):
            raise ReplyError(
                "training has changed layers that require no gradient and are sent only once: make them buffers of the "
                "module (register_buffer), which are sent in every exchange"
            )
        return result

    def start(self) -> Tensor:
        """Return the initial models of training, ``[clients, parameters]``; by default the current ones."""
        return self.models

    def recall(self, purpose: str, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the clients' state for ``purpose``, ``{name: [clients, ...]}``.

        A training request gets the state after an earlier round, an evaluation request possibly that after this round.
        A client without state gets ``empty``, tensors without a client axis.
        """
        request = self.request
        before = request.round if request.train else request.round + 1
        return self.node.state(request.run, purpose).load(request.clients, before, empty)

    def remember(self, purpose: str, stacked: Mapping[str, Tensor]) -> None:
        """Keep tensors ``[clients, ...]`` on this node as the state after this round."""
        request = self.request
        self.node.state(request.run, purpose).save(request.clients, request.round, stacked, request.keep_from)

    def gradient_term(self) -> GradientTerm | None:
        """Return the method's term in the gradient of the local loss; None by default."""
        return None


def cohort_with(cohort: Cohort, settings: TrainSettings, seed: int) -> Cohort:
    """Return the clients with other settings or another seed; cached as long as ``cohort`` exists."""
    if (settings, seed) == (cohort.settings, cohort.seed):
        return cohort
    return derived(cohort, (settings, seed), lambda: Cohort(cohort.model, cohort.data, settings, seed))


def derived(cohort: Cohort, key: Hashable, build: Callable[[], Cohort]) -> Cohort:
    """Return the result of ``build``, cached per ``key`` as long as ``cohort`` exists."""
    made = _derived.setdefault(cohort, {})
    if key not in made:
        made[key] = build()
    return made[key]


_derived: WeakKeyDictionary[Cohort, dict[Hashable, Cohort]] = WeakKeyDictionary()
