"""F3 in any Flower app: embeddings of all clients, queried once, and a fusion model with a learned graph.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
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
from fedgraph.fusion import FusionData, FusionSettings, JoinedSamples, check_shared, scores
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


class F3(PhasedStrategy):
    """Federated feature fusion of clients that hold different features of the same samples.

    Clients answer a query with :func:`fedgraph.clients.embeddings`; nothing is sent back, and their models stay local.
    Samples are joined by their ids; every client may lack some.

    Parameters
    ----------
    graph : str or ClientGraph, default "icdf"
        As for :class:`fedgraph.fusion.FusionClassifier`; a ClientGraph over the names of the clients is used as given.
    seed : int, default 0
        Seed.
    validation_fraction : float, default 0.1
        Share of the training samples for choosing the best epoch, unless clients mark validation samples.
    min_available_nodes : int, default 2
        Minimum number of nodes, for which the strategy waits.
    message_type : str, default "query"
        Type of the messages: ``query.NAME`` reaches a handler ``@app.query("NAME")``.
    configrecord_key : str, default "config"
        Record of the messages for ``train_config`` and ``evaluate_config`` of ``start``.
    **settings
        The keys of ``[f3]`` on fusion, such as ``alignment`` or ``epochs``; see
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
            strategy.predict(grid)  # samples without a label
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
        from fedgraph.fusion import FusionClassifier  # imports scikit-learn, which experiments do not need

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
        """The learned or given client graph; None before :meth:`start`, and for a fusion without one."""
        found: ClientGraph | None = getattr(self.classifier, "graph_", None)
        return found

    @property
    def history(self) -> Any:
        """Losses by ``learning_rate`` and ``epoch``, a data frame."""
        return self.classifier.history_

    def run(self, grid: Grid, timeout: float, train_config: ConfigRecord | None) -> Result:
        """Query all clients for embeddings once, and train the fusion model on them.

        Raises RunError for too few nodes, without a usable answer, or when training diverges; IdentityError when a
        given graph needs names that nodes do not send; and DataError or ValueError for unusable samples, such as when
        no two clients share a labelled sample. A client that shares none is logged with a warning.
        """
        nodes = connected_nodes(grid, self.min_available_nodes, timeout)
        answers = self._ask(grid, nodes, WantedEmbeddings(), train_config, timeout)
        if isinstance(self.classifier.graph, ClientGraph) and any(
            str(node) == name for node, name in self._names.items()
        ):
            raise IdentityError(f"the graph is over names of clients, but some nodes do not send one: {ADVICE}")
        class_kind, classes = common_classes(answers)
        if len(classes) < 2:
            raise DataError(
                f"labels of at least two classes are required, but clients sent {len(classes)}: pass labels of the "
                f"samples to `embeddings` at one client at least; {NO_LABEL} means no label"
            )
        joined = self._divided(self._joined(answers, classes))
        ids = {name: answer.keys for name, answer in answers.items()}
        for note in check_shared(joined.owners, joined.present, joined.keys, "client", ids):
            log.warning("%s", note)
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
        """Query embeddings of new samples, and predict their classes.

        Returns the classes by id, in the order of ``ids``, by default sorted by the text of the ids. Raises DataError
        when no client has such a sample.

        Parameters
        ----------
        grid : Grid
            Grid that connects to the nodes.
        ids : sequence, optional
            Ids of the samples; by default all that clients mark as new, and those without a label that were not used
            in training. Ids that no client has are skipped with a warning.
        timeout : float
            Seconds to wait for answers.
        evaluate_config : ConfigRecord, optional
            Added to the query.
        """
        return self.predict_proba(grid, ids, timeout, evaluate_config).idxmax(axis=1)

    def predict_proba(
        self,
        grid: Grid,
        ids: Sequence[Any] | None = None,
        timeout: float = 3600,
        evaluate_config: ConfigRecord | None = None,
    ) -> Any:
        """Query embeddings of new samples, and predict class probabilities.

        Clients that do not answer are skipped. Parameters and errors as :meth:`predict`. Returns ``[samples, classes]``
        by id, in the order of :meth:`predict`.
        """
        import pandas as pd

        if not hasattr(self.classifier, "fusion_"):
            raise RunError("no fusion model yet: call start first")
        wanted = WantedEmbeddings(("new",), None if ids is None else tuple(map(str, ids)))
        answers = self._fitting(self._ask(grid, sorted(grid.get_node_ids()), wanted, evaluate_config, timeout))
        keys = {key for answer in answers.values() for key in answer.keys}
        keys = keys & set(wanted.ids) if wanted.ids is not None else keys - set(self._learned)
        if not keys:
            raise DataError(
                'no client has a sample to predict: samples are new if `embeddings` has split="new", or if no client '
                "has their label"
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
            raise RunError(
                "no client sent a usable answer; the log has the reasons. A client answers with "
                f"fedgraph.clients.embeddings in a handler (@app.query) of '{self.message_type}', which a ClientApp "
                "with a client_fn cannot have"
            )
        for name in [name for name, answer in answers.items() if not answer.keys]:
            log.info("client '%s' has none of the requested samples", name)
            del answers[name]
        return answers

    def _fitting(self, answers: dict[str, OwnEmbeddings]) -> dict[str, OwnEmbeddings]:
        """Return the answers that fit the fusion model, without labels and splits."""
        fusion, fitting = self.classifier.fusion_, {}
        for name, answer in answers.items():
            size = answer.embeddings.shape[1]
            if name not in fusion.owners:
                log.error("going on without client '%s': the fusion model was trained without it", name)
            elif size != int(fusion.sizes[fusion.owners.index(name)]):
                log.error(
                    "going on without client '%s': its embeddings have %d numbers, but %d in the training of the "
                    "fusion model", name, size, int(fusion.sizes[fusion.owners.index(name)]),
                )  # fmt: skip
            else:
                none = torch.full_like(answer.labels, NO_LABEL)
                fitting[name] = replace(answer, labels=none, classes=(), split=torch.full_like(answer.split, _NEW))
        return fitting

    def _joined(
        self, answers: dict[str, OwnEmbeddings], classes: Sequence[str], owners: Sequence[str] | None = None
    ) -> JoinedSamples:
        """Join samples by id; owners that contradict the majority are excluded."""
        replies = {node: answer.as_reply(name, classes) for node, (name, answer) in enumerate(answers.items())}
        joined, absent = join(replies, owners, tolerant=True)
        for name, reason in absent.items():
            if name in answers:
                log.error("going on without client '%s': %s", name, reason)
        return joined

    def _divided(self, joined: JoinedSamples) -> JoinedSamples:
        """Return the samples for training, validation and test."""
        split, labelled = joined.split.clone(), joined.labels != NO_LABEL
        split[(split == UNDECIDED) & labelled] = _TRAIN
        lost = ~labelled & (split >= 0) & (split != _NEW)
        if bool(lost.any()):
            keys = [joined.keys[place] for place in lost.nonzero().flatten().tolist()]
            log.warning("%d samples are skipped because no client has their label: %s", len(keys), quoted(keys))
        rows = ((split == _TRAIN) & labelled).nonzero().flatten()
        learned = len(joined.labels[rows].unique())
        if learned < 2:
            raise DataError(
                f"{len(rows)} labelled samples of {learned} classes are left for training, which needs two classes: "
                "clients that have the label of a sample must send the same one, written alike, and samples to train "
                'on have no split in `embeddings`, or split="train"'
            )
        if not bool((split == _VALIDATION).any()):
            if len(rows) == learned:
                raise DataError(
                    f"each of the {len(rows)} labelled training samples is the only one of its class, so none can be "
                    "held out for validation: pass classes as labels to `embeddings`, not ids or amounts, or mark "
                    "validation samples by `split`"
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


def _places(keys: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Return the positions of ids among keys, in their order; unknown ids are skipped with a warning."""
    place_of = {key: place for place, key in enumerate(keys)}
    unknown = [each for each in ids if each not in place_of]
    if unknown:
        log.warning("no client has %d of %d ids, which are not predicted: %s", len(unknown), len(ids), quoted(unknown))
    return [place_of[each] for each in ids if each in place_of]
