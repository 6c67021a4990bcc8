"""F3 in any Flower app: embeddings of all clients, asked for once, and a fusion model with a learned graph.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgraph.algorithms import f3
from fedgraph.algorithms.joining import join
from fedgraph.data.owners import NO_LABEL, SAMPLE_SPLITS, held_out
from fedgraph.fusion import FusionData, FusionSettings, JoinedSamples, scores
from fedgraph.graph import ClientGraph
from fedgraph.messages import to_record
from fedgraph.messages.queries import UNDECIDED, OwnEmbeddings, WantedEmbeddings, common_classes, restored
from fedgraph.strategies.engine.app_clients import ADVICE
from fedgraph.strategies.engine.app_queries import ask_clients, connected_nodes, with_config
from fedgraph.strategies.engine.strategy import PhasedStrategy
from fedgraph.support.errors import DataError, IdentityError, RunError, quoted, similar

log = logging.getLogger("fedgraph")

_TRAIN, _VALIDATION, _NEW = (SAMPLE_SPLITS.index(split) for split in ("train", "validation", "new"))
_MEASURED = ("validation", "test")
_NAMED = 5
"""Clients in a message."""


class F3(PhasedStrategy):
    """Federated feature fusion of clients that hold different features of the same samples.

    Clients answer a query with :func:`fedgraph.clients.embeddings`; nothing is sent back to them, and their models stay
    where they are. Samples are joined by their ids; every client may lack some.

    Parameters
    ----------
    graph : str or ClientGraph, default "icdf"
        As for :class:`fedgraph.fusion.FusionClassifier`; a ClientGraph over the names of the clients is used as given.
    seed : int, default 0
        Seed.
    validation_fraction : float, default 0.1
        Share of the training samples that choose the best epoch, where clients say of no sample that it is for
        validation.
    min_available_nodes : int, default 2
        Fewest nodes; the strategy waits for them.
    message_type : str, default "query"
        Type of the messages: ``query.NAME`` reaches a handler ``@app.query("NAME")``.
    configrecord_key : str, default "config"
        Record of the messages that ``train_config`` and ``evaluate_config`` of ``start`` are sent in.
    **settings
        The keys of ``[f3]`` that are about the fusion, such as ``alignment`` or ``epochs``; see
        :class:`fedgraph.fusion.FusionClassifier`.

    Attributes
    ----------
    classifier : FusionClassifier
        The fusion model, fitted by :meth:`start`.
    metrics : dict of str to float
        Accuracy, F1, area under the ROC curve and loss of validation and test samples: ``test/accuracy``.

    Examples
    --------
    In a ServerApp::

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = F3(scaling="owner")
            strategy.start(grid)
            strategy.metrics["test/accuracy"], strategy.graph
            strategy.predict(grid)  # samples that nobody has a label of
    """

    algorithm_class = f3.F3

    def __init__(
        self,
        *,
        graph: str | ClientGraph = "icdf",
        seed: int = 0,
        validation_fraction: float = 0.1,
        min_available_nodes: int = 2,
        message_type: str = "query",
        configrecord_key: str = "config",
        **settings: Any,
    ) -> None:
        from fedgraph.fusion import FusionClassifier  # and scikit-learn, which runs of experiments do without

        if unknown := [name for name in settings if name not in FusionSettings.model_fields]:
            known = sorted({*signature(F3).parameters, *FusionSettings.model_fields} - {"settings"})
            raise TypeError(
                f"F3 has no keyword {quoted(unknown)}{similar(unknown, known)}; its keywords: {', '.join(known)}"
            )
        self.classifier = FusionClassifier(
            graph=graph, random_state=seed, validation_fraction=validation_fraction, **settings
        )
        self.settings, self.seed = self.classifier.settings, seed
        self.min_available_nodes, self.message_type = min_available_nodes, message_type
        self.configrecord_key = configrecord_key
        self.metrics: dict[str, float] = {}
        self._names: dict[int, str] = {}
        self._learned: Collection[str] = ()

    @property
    def graph(self) -> ClientGraph | None:
        """The learned or given graph over the clients; None before :meth:`start`, and for a fusion without one."""
        found: ClientGraph | None = getattr(self.classifier, "graph_", None)
        return found

    @property
    def history(self) -> Any:
        """Losses by ``learning_rate`` and ``epoch``, a data frame."""
        return self.classifier.history_

    def run(self, grid: Grid, timeout: float, train_config: ConfigRecord | None) -> Result:
        """Ask all clients for embeddings once, and train the fusion model on them.

        Raises RunError when too few nodes are there, none of them sends anything usable, or training diverges. Raises
        IdentityError when a given graph is over names that nodes do not say. Raises DataError or ValueError when
        samples cannot be joined or trained with, as where no two clients share a labelled sample. A single client that
        does not share any is warned of in the log.
        """
        nodes = connected_nodes(grid, self.min_available_nodes, timeout)
        answers = self._ask(grid, nodes, WantedEmbeddings(), train_config, timeout)
        if isinstance(self.classifier.graph, ClientGraph) and any(
            str(node) == name for node, name in self._names.items()
        ):
            raise IdentityError(f"some nodes do not say which client they are, and the graph is over names: {ADVICE}")
        class_kind, classes = common_classes(answers)
        if len(classes) < 2:
            raise DataError(
                f"labels of two classes or more are needed, and clients sent {len(classes)}: give `embeddings` the "
                "labels of the samples at one client at least"
            )
        joined = self._divided(self._joined(answers, classes))
        _check_shared(joined, {name: answer.keys for name, answer in answers.items()})
        data = FusionData(joined.embeddings, joined.present, joined.labels, joined.split, joined.sizes, len(classes))
        self.classifier.fit_joined(data, joined.owners, np.array(restored(classes, class_kind)), self.seed)
        self._learned = frozenset(joined.keys)
        self.metrics = self._metrics_of(joined)
        arrays = to_record(self.classifier.fusion_.network.state_dict())
        return Result(arrays=arrays, evaluate_metrics_serverapp={1: MetricRecord(dict(self.metrics))})

    def predict(
        self,
        grid: Grid,
        ids: Sequence[Any] | None = None,
        timeout: float = 3600,
        evaluate_config: ConfigRecord | None = None,
    ) -> Any:
        """Ask for embeddings of new samples, and predict their classes.

        Returns the classes, by id, in the order of ``ids``; by default sorted by the text of the ids. Raises DataError
        when no client has such a sample.

        Parameters
        ----------
        grid : Grid
            Grid that connects to the nodes.
        ids : sequence, optional
            Ids of the samples; by default all that clients call new, or that have no label and were not learned from.
            Those that no client has are left out of the result, with a warning in the log that names them.
        timeout : float
            Seconds that nodes have to answer.
        evaluate_config : ConfigRecord, optional
            Sent along.
        """
        return self.predict_proba(grid, ids, timeout, evaluate_config).idxmax(axis=1)

    def predict_proba(
        self,
        grid: Grid,
        ids: Sequence[Any] | None = None,
        timeout: float = 3600,
        evaluate_config: ConfigRecord | None = None,
    ) -> Any:
        """Ask for embeddings of new samples, and predict the probabilities of their classes.

        Clients that no longer answer are left out. Parameters and errors are those of :meth:`predict`. Returns
        ``[samples, classes]``, by id, in the order of :meth:`predict`.
        """
        import pandas as pd

        if not hasattr(self.classifier, "fusion_"):
            raise RunError("there is no fusion model yet: call start first")
        wanted = WantedEmbeddings(("new",), None if ids is None else tuple(map(str, ids)))
        answers = self._fitting(self._ask(grid, sorted(grid.get_node_ids()), wanted, evaluate_config, timeout))
        keys = {key for answer in answers.values() for key in answer.keys}
        keys = keys & set(wanted.ids) if wanted.ids is not None else keys - set(self._learned)
        if not keys:
            raise DataError(
                "no client has one of the samples to predict: samples are new where `embeddings` is told so by "
                'split="new", or where nobody has their label'
            )
        fusion = self.classifier.fusion_
        joined = self._joined(answers, fusion.classes, fusion.owners)
        joined = joined.only(torch.tensor([key in keys for key in joined.keys]))
        found = fusion.predict(joined.embeddings, joined.present).probabilities.numpy()
        kinds = {answer.id_kind for answer in answers.values()}
        index = restored(joined.keys, kinds.pop() if len(kinds) == 1 else "text")
        predicted = pd.DataFrame(found, pd.Index(index), self.classifier.classes_)
        return predicted if wanted.ids is None else predicted.iloc[_places(joined.keys, wanted.ids)]

    # ---- answers of clients ----------------------------------------------------------------------------------------

    def _ask(
        self, grid: Grid, nodes: list[int], wanted: WantedEmbeddings, config: ConfigRecord | None, timeout: float
    ) -> dict[str, OwnEmbeddings]:
        """Return the clients' parts of the samples, by name. Raises RunError if no client has sent anything usable."""
        content = with_config(wanted.pack(), self.configrecord_key, config)
        answers = ask_clients(grid, nodes, content, self.message_type, OwnEmbeddings.unpack, self._names, timeout)
        if not answers:
            raise RunError("no client sent a usable answer; the log has the reasons")
        for name in [name for name, answer in answers.items() if not answer.keys]:
            log.info("client '%s' has none of the samples that were asked for", name)
            del answers[name]
        return answers

    def _fitting(self, answers: dict[str, OwnEmbeddings]) -> dict[str, OwnEmbeddings]:
        """Return the answers that fit the fusion model, without their labels and splits."""
        fusion, fitting = self.classifier.fusion_, {}
        for name, answer in answers.items():
            size = answer.embeddings.shape[1]
            if name not in fusion.owners:
                log.error("going on without client '%s': the fusion model was trained without it", name)
            elif size != int(fusion.sizes[fusion.owners.index(name)]):
                log.error(
                    "going on without client '%s': its embeddings have %d numbers, and those that the fusion model was "
                    "trained on had %d", name, size, int(fusion.sizes[fusion.owners.index(name)]),
                )  # fmt: skip
            else:
                none = torch.full_like(answer.labels, NO_LABEL)
                fitting[name] = replace(answer, labels=none, classes=(), split=torch.full_like(answer.split, _NEW))
        return fitting

    def _joined(
        self, answers: dict[str, OwnEmbeddings], classes: Sequence[str], owners: Sequence[str] | None = None
    ) -> JoinedSamples:
        """Join samples by id; owners that contradict most others are left out."""
        replies = {node: answer.as_reply(name, classes) for node, (name, answer) in enumerate(answers.items())}
        joined, absent = join(replies, owners, tolerant=True)
        for name, reason in absent.items():
            if name in answers:
                log.error("going on without client '%s': %s", name, reason)
        return joined

    def _divided(self, joined: JoinedSamples) -> JoinedSamples:
        """Return the samples to train, validate and test with."""
        split, labelled = joined.split.clone(), joined.labels != NO_LABEL
        split[(split == UNDECIDED) & labelled] = _TRAIN
        lost = ~labelled & (split >= 0) & (split != _NEW)
        if bool(lost.any()):
            keys = [joined.keys[place] for place in lost.nonzero().flatten().tolist()]
            log.warning("%d samples are left out because no client has their label: %s", len(keys), quoted(keys))
        if not bool((split == _VALIDATION).any()):
            rows = ((split == _TRAIN) & labelled).nonzero().flatten()
            if 0 < len(rows) == len(joined.labels[rows].unique()):
                raise DataError(
                    f"each of the {len(rows)} labelled training samples is the only one of its class, so that none can "
                    "be held out for validation: give `embeddings` classes as labels, not ids or amounts, or say by "
                    "its `split` which samples are for validation"
                )
            chosen = held_out(joined.labels[rows], self.classifier.validation_fraction, self.seed)
            split[rows] = chosen.to(split.dtype)
        return replace(joined, split=split).only(labelled & (split != _NEW))

    def _metrics_of(self, joined: JoinedSamples) -> dict[str, float]:
        found = self.classifier.fusion_.predict(joined.embeddings, joined.present).probabilities
        metrics: dict[str, float] = {}
        for split in _MEASURED:
            rows = joined.of_split(split)
            if len(rows):
                measured = scores(found[rows], joined.labels[rows])
                metrics |= {f"{split}/{name}": value for name, value in measured.items()}
        return metrics


def _check_shared(joined: JoinedSamples, ids: Mapping[str, Sequence[str]]) -> None:
    """Warn of each client that shares no labelled sample with another one. Raises DataError where no two share one.

    Parameters
    ----------
    ids : by client the ids of all its samples.
    """
    if len(joined.owners) < 2:
        return
    shared = joined.present.sum(1) > 1
    alone = [
        name for name, number in zip(joined.owners, joined.present[shared].sum(0).tolist(), strict=True) if not number
    ]
    advice = "the same sample needs the same id at every client, and a label at one of them"
    if not bool(shared.any()):
        listed = "; ".join(
            f"'{name}' has {len(ids[name])} samples, such as '{ids[name][0]}'" for name in alone[:_NAMED]
        )
        raise DataError(f"no two clients share a labelled sample, which fusion needs ({listed}): {advice}")
    for name in alone:
        log.warning(
            "client '%s' shares no labelled sample with other clients; it has %d samples, such as '%s': %s",
            name, len(ids[name]), ids[name][0], advice,
        )  # fmt: skip


def _places(keys: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Return the places of ids among keys, in their order; those that are not there are left out with a warning."""
    place_of = {key: place for place, key in enumerate(keys)}
    unknown = [each for each in ids if each not in place_of]
    if unknown:
        log.warning("no prediction of %d of %d ids, which no client has: %s", len(unknown), len(ids), quoted(unknown))
    return [place_of[each] for each in ids if each in place_of]
