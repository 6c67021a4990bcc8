"""An algorithm as a Flower strategy for any ClientApp, in Flower's loop, with one client per node.

Messages and replies have the format of Flower's strategies: an array record, a config record, a metric record.
"""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from fedgraph.algorithms import Algorithm, Ask, Round
from fedgraph.federation import quick
from fedgraph.graph import ClientGraph
from fedgraph.messages import from_record
from fedgraph.messages.apps import APP_RECORD, TERMS_KEY, read_client
from fedgraph.strategies.engine.app_clients import ADVICE, AppClients
from fedgraph.strategies.engine.app_exchange import AppReply, Keys, answers, averaged, last_words, request
from fedgraph.strategies.engine.app_queries import connected_nodes
from fedgraph.strategies.engine.app_state import AppState, graph_of, graph_state
from fedgraph.strategies.engine.strategy import EvaluateFn
from fedgraph.support.errors import ReplyError, RunError, quoted, similar
from fedgraph.support.files import load_state, save_state
from fedgraph.support.settings import parse

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedgraph")

AggregateFn = Callable[[list[RecordDict], str], MetricRecord]

_FILE = "strategy.safetensors"
_KINDS = {"train": "training", "evaluate": "evaluation"}
_LARGE = 1 << 26
"""Number of parameters from which memory is released explicitly, which takes 0.1 s."""


class FlowerStrategy(FedAvg):
    """Base class of Flower strategies that run an algorithm, with a model per client.

    Clients are identified by name, which ``ClientApp(mods=[client_name])`` adds to replies. A client that does not
    answer keeps its model; one with an unusable answer is excluded from the round, with a warning. Raises TypeError for
    an unknown keyword, and ExperimentError for settings that the method refuses.

    Parameters
    ----------
    graph : ClientGraph, optional
        The client graph, over the names of clients; ``min_available_nodes`` is then its number of clients unless given.
    seed : int, default 0
        Seed of the algorithm's random numbers. With ``fraction_train`` below 1, Flower draws clients by Python's
        generator (``random.seed``).
    save_to : path, optional
        Folder in which the strategy is saved after every round; see :meth:`load`.
    most_examples : float, optional
        Bound on the numbers of examples that clients claim; see ``[defence] most-examples``.
    **keywords
        Settings of the method, as in its table with underscores for dashes, and keywords of Flower's
        ``FedAvg``: ``fraction_train``, ``fraction_evaluate``, ``min_train_nodes``, ``min_evaluate_nodes``,
        ``min_available_nodes``, ``weighted_by_key``, ``arrayrecord_key``, ``configrecord_key``,
        ``train_metrics_aggr_fn``, ``evaluate_metrics_aggr_fn``.

    Attributes
    ----------
    algorithm : the algorithm, with its settings.
    client_arrays : the model of each client, by name.
    """

    algorithm_class: ClassVar[type[Algorithm[Any]]]
    needs_names: ClassVar[bool] = False
    assumes_mean_counts: ClassVar[bool] = False
    """Whether a client that has not answered yet counts as many examples as the others do on average, not as one."""

    def __init__(
        self,
        graph: ClientGraph | None = None,
        *,
        seed: int = 0,
        save_to: str | Path | None = None,
        most_examples: float | None = None,
        **keywords: Any,
    ) -> None:
        if not hasattr(self, "algorithm_class"):
            raise TypeError(f"{type(self).__name__} has no algorithm: set algorithm_class = YourAlgorithm in the class")
        kind = self.algorithm_class.settings_type
        flower = set(inspect.signature(FedAvg.__init__).parameters) - {"self"}
        unknown = sorted(set(keywords) - set(kind.model_fields) - flower)
        if unknown:
            known = ", ".join(["graph", "seed", "save_to", "most_examples", *sorted({*kind.model_fields, *flower})])
            raise TypeError(
                f"{type(self).__name__} has no keyword '{unknown[0]}'; it has {known}"
                f"{similar(unknown[:1], [*kind.model_fields, *flower])}"
            )
        if graph is not None and not isinstance(graph, ClientGraph):
            raise TypeError(f"graph is a fedgraph.ClientGraph, not {graph!r}: see its from_edges, from_adjacency, ...")
        settings = {name: value for name, value in keywords.items() if name in kind.model_fields}
        self.algorithm: Algorithm[Any] = self.algorithm_class(parse(kind, settings, type(self).__name__))
        if graph is None and self.algorithm.needs_graph:
            raise TypeError(f"{type(self).__name__} needs a client graph: {type(self).__name__}(graph)")
        if graph is not None:
            keywords.setdefault("min_available_nodes", graph.num_clients)
            if graph.num_clients == 1:  # Flower asks at least two by default
                keywords.setdefault("min_train_nodes", 1)
                keywords.setdefault("min_evaluate_nodes", 1)
        self._keywords = {name: value for name, value in keywords.items() if name in flower}
        super().__init__(**self._keywords)
        self.graph, self.seed, self.most_examples = graph, seed, most_examples
        self._save_to = None if save_to is None else Path(save_to)
        self._timeout, self._offset, self._started, self._goes_on = 3600.0, 0, False, False
        self._said: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        """Forget all rounds and clients."""
        known = None if self.graph is None else self.graph.names
        self.round = 0
        self._members = AppClients(self.needs_names or self.graph is not None, known)
        self._app = AppState(self.algorithm, self.graph, self.seed, self.initial_of, self.most_examples)
        self._history: list[tuple[int, str, str, float]] = []
        self._trained: set[str] = set()
        self._progress: Round | None = None
        self._ask = Ask({})
        self._selected: dict[str, int] = {}
        self._drawn = False

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def client_arrays(self) -> Mapping[str, ArrayRecord]:
        """The model of each client, by name; empty before the first round."""
        return self._app.client_arrays()

    @property
    def arrays(self) -> ArrayRecord | None:
        """The read-out; None before the first round, and for a method without one."""
        return self._app.readout()

    @property
    def history(self) -> pd.DataFrame:
        """The metrics reported by clients, as a data frame with the columns round, client, metric and value.

        Metrics are ``train/<name>`` and ``evaluate/<name>``.
        """
        import pandas as pd

        return pd.DataFrame(self._history, columns=["round", "client", "metric", "value"])

    @property
    def learned_graph(self) -> ClientGraph | None:
        """The learned client graph; None before the first round, and for a method without one."""
        clients = self._app.clients
        return None if clients is None else self.algorithm.learned_graph(clients, self._app.state)

    def summary(self) -> None:
        """Log the settings of the method and of Flower."""
        logger = logging.getLogger("flwr")
        logger.info("\t├──> %s:", self.algorithm_class.title)
        for key, value in self.algorithm.settings.as_table().items():
            logger.info("\t│\t├── %s: %s", key, value)
        if self.graph is not None:
            logger.info("\t├──> Client graph: %s", self.graph.describe())
        super().summary()

    # ---- saved and loaded -------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Save the strategy between two rounds: settings, client graph, models, history."""
        save_state(
            Path(folder) / _FILE,
            {
                "class": type(self).__name__,
                "settings": self.algorithm.settings.as_table(nulls=True),
                "keywords": {name: value for name, value in self._keywords.items() if not callable(value)},
                "seed": self.seed,
                "most-examples": self.most_examples,
                "round": self.round,
                "history": [list(line) for line in self._history],
                "graph": graph_state(self.graph),
                "names": self._members.say_names,
                "clients": self._app.saved(),
            },
        )

    @classmethod
    def load(cls, folder: str | Path, **keywords: Any) -> Self:
        """Load a saved strategy; ``start`` continues after its last round, up to ``num_rounds`` in total.

        Raises RunError without a state, for one of another class, and if clients are known only by their node ids.

        Parameters
        ----------
        folder : path
            Folder of the saved strategy.
        **keywords
            Keywords that are not saved, functions and ``save_to``, and changed ones.
        """
        saved = load_state(Path(folder) / _FILE)
        if saved["class"] != cls.__name__:
            raise RunError(f"{folder} has a strategy {saved['class']}, not {cls.__name__}")
        settings = {name.replace("-", "_"): value for name, value in saved["settings"].items()}
        keywords = {"most_examples": saved.get("most-examples"), **settings, **saved["keywords"], **keywords}
        loaded = cls(graph_of(saved["graph"]), seed=saved["seed"], **keywords)
        loaded.round = saved["round"]
        loaded._history = [(int(number), client, metric, value) for number, client, metric, value in saved["history"]]
        loaded._members.say_names = saved["names"]
        if saved["clients"] is not None:
            if not saved["names"]:
                raise RunError(f"the clients of {folder} are known only by node ids, which have changed: {ADVICE}")
            loaded._app.load(saved["clients"])
        loaded._goes_on = True
        return loaded

    # ---- Flower's loop ----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run Flower's loop; parameters and result are those of its ``Strategy.start``.

        Every start is a new run, except for the first after :meth:`load`, which continues after the last round up to
        ``num_rounds`` in total and needs no ``initial_arrays``.
        """
        if not self._goes_on:
            self._reset()
        done, arrays = self.round, self.arrays if self.round else initial_arrays
        if arrays is None:
            raise RunError("start needs initial_arrays, such as ArrayRecord(model.state_dict())")
        if done and initial_arrays is not None:
            log.warning("initial_arrays are ignored: the loaded strategy continues after round %d", done)
        if done and num_rounds <= done:
            log.warning(
                "nothing to do: num_rounds = %d in total, and %d were done before the strategy was saved",
                num_rounds,
                done,
            )
        self._goes_on = False

        def evaluated(number: int, found: ArrayRecord) -> MetricRecord | None:
            # The read-out of the last round was evaluated before the strategy was saved.
            skipped = evaluate_fn is None or (done and not number)
            return None if skipped else evaluate_fn(number + done, found)  # type: ignore[misc]

        self._timeout, self._offset, self._started = timeout, done, True
        try:
            result = super().start(
                quick(grid), arrays, max(num_rounds - done, 0), timeout, train_config, evaluate_config,
                None if evaluate_fn is None else evaluated,
            )  # fmt: skip
        finally:
            self._offset, self._started = 0, False
        self._tell_untrained()
        for found in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, found, {number + done: value for number, value in getattr(result, found).items()})
        result.arrays = self.arrays or arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start a round of the algorithm, and return the messages of its first exchange."""
        number = server_round + self._offset
        if not self._started:
            self._say_once(
                "wrapped", "%s runs within another strategy, whose changes of the aggregate, such as noise, affect "
                "only the read-out, not the clients' own models", type(self).__name__,
            )  # fmt: skip
        # Flower draws from the connected nodes, though others may connect.
        connected_nodes(grid, self.min_available_nodes if self.fraction_train else 0)
        messages = list(super().configure_train(number, arrays, config, grid))
        self._grid, self._config, self._initial, self._drawn = grid, config, arrays, bool(messages)
        if not messages:
            return []
        nodes = [message.metadata.dst_node_id for message in messages]
        if self._app.clients is None and not self._members.needs_names:
            # All start with the same model, and send their names with the answer.
            self._selected = {}
            return messages
        self._selected = self._members.identify(grid, nodes, self._timeout)
        self._admit(self._selected)
        self._begin(number)
        return self._messages(self._ask, number, config, grid, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass the answers to the algorithm, run its further exchanges, and return the read-out."""
        number, received = server_round + self._offset, list[AppReply]()
        if not self._drawn:
            return None, None
        while True:
            usable = self._usable(number, replies, "train")
            received += usable
            if self._progress is None and usable:
                self._begin(number)
                usable = [reply for reply in usable if self._is_asked(reply.name)]
            usable = self._with_tensors(number, usable)
            if not usable and (self._progress is None or self._ask.to is None):
                self._progress = None
                log.warning("round %d: no usable answer, nothing is aggregated", number)
                return None, None
            assert self._progress is not None
            try:
                self._ask = self.algorithm.proceed(
                    self._progress, answers(self._app.all_clients, self._app.models, self._ask, usable)
                )
            except StopIteration as end:
                self._progress = None
                self._app.take(number, end.value)
                break
            sent = self._messages(self._ask, number, self._config, self._grid, MessageType.TRAIN)
            replies = list(self._grid.send_and_receive(sent, timeout=self._timeout))
        self.round = number
        self._tell_unused_terms(received)
        metrics = self._mean(received, self.train_metrics_aggr_fn)
        # Flower's loop still holds the replies with large models.
        del usable, replies
        while received:
            received.pop().forget_arrays()
        clients, parameters = self._app.models.shape
        if clients * parameters > _LARGE:
            # Flower's records have reference cycles.
            gc.collect()
        if self._save_to is not None:
            self.save(self._save_to)
        return self.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages with each client's own model."""
        number = server_round + self._offset
        connected_nodes(grid, self.min_available_nodes if self.fraction_evaluate else 0)
        messages = list(super().configure_evaluate(number, arrays, config, grid))
        self._initial = arrays
        if not messages or self._app.clients is None:
            return messages
        nodes = [message.metadata.dst_node_id for message in messages]
        self._selected = self._members.identify(grid, nodes, self._timeout)
        self._admit(self._selected)
        return self._messages(Ask({"parameters": self._app.models}), number, config, grid, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Record the metrics of each client, and return their mean."""
        usable = self._usable(server_round + self._offset, replies, "evaluate")
        if self._save_to is not None and usable:
            self.save(self._save_to)
        return self._mean(usable, self.evaluate_metrics_aggr_fn)

    # ---- overridden by methods --------------------------------------------------------------------------------------

    term_to_add: ClassVar[str] = ""
    """The function that clients add to their loss, if the method has such a term."""

    def terms(self, number: int) -> dict[str, Any]:
        """Return the settings of the loss terms of clients in a round; empty without any."""
        return {}

    def initial_of(self, name: str) -> Tensor | None:
        """Return a client's own initial model ``[parameters]``, or None if all start with the same."""
        return None

    # ---- a round ----------------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        self._progress, self._ask = self.algorithm.begin(self._app.all_clients, self._app.state, number)

    def _is_asked(self, name: str) -> bool:
        """Return whether a client is part of the exchange; before the first round all are."""
        return self._ask.to is None or self._app.all_clients.names.index(name) in self._ask.to.tolist()

    def _messages(self, ask: Ask, number: int, config: ConfigRecord, grid: Grid, kind: str) -> Iterable[Message]:
        """Return the messages of an exchange, lazily if the grid supports it, as models may be large."""
        config["server-round"] = number
        messages = self._each_message(ask, number, config, kind)
        return messages if getattr(grid, "reads_messages_once", False) else list(messages)

    def _each_message(self, ask: Ask, number: int, config: ConfigRecord, kind: str) -> Iterator[Message]:
        terms = self.terms(number) if kind == MessageType.TRAIN else {}
        if self.term_to_add and not terms:
            # Further tensors are only for the loss term.
            ask = replace(ask, shared={}, models=())
        names = self._app.all_clients.names
        for place in range(len(names)) if ask.to is None else ask.to.tolist():
            if names[place] in self._selected:
                content = request(ask, place, self._app.models, config, self._keys, terms)
                yield Message(content, self._selected[names[place]], kind, group_id=str(number))

    def _usable(self, number: int, replies: Iterable[Message], kind: str) -> list[AppReply]:
        """Return the usable replies in the order of names, record their metrics, and log problems of others."""
        found: dict[str, AppReply] = {}
        nodes: dict[str, int] = {}
        for message in list(replies):
            node = message.metadata.src_node_id
            whose = self._members.name_of.get(node, f"node {node}")
            try:
                if message.has_error():
                    raise ReplyError(last_words(message))
                whose = self._members.name_from(node, read_client(message.content))
                template = self._template(whose)
                if whose in found:
                    raise ReplyError("two nodes have the name of this client")
                reply = AppReply.of(whose, message, self._keys, template if kind == "train" else None)
            except ReplyError as error:
                log.warning("round %d, %s: no usable answer of client '%s': %s", number, _KINDS[kind], whose, error)
                continue
            found[whose], nodes[whose] = reply, node
        if self._app.clients is None and found:
            self._admit(found)
            # From now on they are known by name, for further exchanges of the round.
            self._selected = nodes
        if kind == "train" and found:
            self._trained.update(found)
            self._count(found)
        usable = [found[name] for name in sorted(found)]
        self._history += [
            (number, reply.name, f"{kind}/{metric}", value)
            for reply in usable
            for metric, value in reply.metrics.items()
        ]
        return usable

    def _with_tensors(self, number: int, replies: Sequence[AppReply]) -> list[AppReply]:
        """Return the replies with all requested tensors, and log problems of others."""
        found = []
        for reply in replies:
            try:
                found.append(reply.with_tensors(self._ask))
            except ReplyError as error:
                log.warning("round %d, training: no usable answer of client '%s': %s", number, reply.name, error)
        return found

    def _template(self, name: str) -> dict[str, Tensor]:
        """Return a model like the expected one of a client; a new client joins."""
        if self._app.clients is None:
            return from_record(self._initial)
        self._admit([name])
        return self._app.models.models[self._app.all_clients.names.index(name)]

    def _admit(self, names: Iterable[str]) -> None:
        new = self._app.admit(names, self._initial)
        if new:
            log.info("new clients: %s", quoted(new))

    def _count(self, found: Mapping[str, AppReply]) -> None:
        """Record the numbers of training examples of clients."""
        counts = {name: reply.num_examples for name, reply in found.items()}
        known = {name: 1 if count is None else count for name, count in counts.items()}
        for note in self._app.count(known, assume_mean=self.assumes_mean_counts):
            self._say_once("claims", "%s", note)
        if None in counts.values():
            self._say_once("count", "answers without '%s' count as one example", self.weighted_by_key)

    def _mean(self, replies: Sequence[AppReply], aggregate: AggregateFn) -> MetricRecord | None:
        """Return Flower's mean of the metrics that can be averaged, and warn once about others."""
        alike = averaged(replies, self._keys, self.most_examples)
        if len(alike) < len(replies):
            left = quoted([reply.name for reply in replies if reply not in alike])
            self._say_once(
                "metrics", "metrics of %s are not in the mean: '%s' is missing or 0, or they are not the metrics of "
                "the others (strategy.history has all)", left, self.weighted_by_key,
            )  # fmt: skip
        return aggregate([reply.content for reply in alike], self.weighted_by_key) if alike else None

    def _tell_unused_terms(self, heard: Iterable[AppReply]) -> None:
        used = any(TERMS_KEY in reply.content.config_records.get(APP_RECORD, ConfigRecord()) for reply in heard)
        if self.term_to_add and self.terms(self.round) and not used:
            self._say_once(
                "terms", "no client has used the term of %s in its loss, so it is 0: add `%s` to the loss, and "
                "`client_name` to the mods of the ClientApp", type(self).__name__, self.term_to_add,
            )  # fmt: skip

    def _tell_untrained(self) -> None:
        """Name the clients of the graph that have never sent a trained model, though ``client_arrays`` has them."""
        untrained = [] if self.graph is None else [name for name in self.graph.names if name not in self._trained]
        if untrained and self._trained:
            log.warning(
                "clients of the graph that have not trained in these rounds: %s; client_arrays has models for them, "
                "which they have not trained", quoted(untrained),
            )  # fmt: skip

    def _say_once(self, what: str, *words: Any) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(*words)

    @property
    def _keys(self) -> Keys:
        return Keys(self.arrayrecord_key, self.configrecord_key, self.weighted_by_key)
