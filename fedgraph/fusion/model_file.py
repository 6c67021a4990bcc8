"""``fusion.safetensors``: the final fusion model of a run of F3, with everything needed for inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.fusion.build import build_network
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.fusion.prediction import Prediction, predict
from fedgraph.fusion.training import FusionData, FusionEpoch, FusionFit, fit
from fedgraph.graph import ClientGraph
from fedgraph.models import flattened
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state, save_state
from fedgraph.support.settings import select_settings


@dataclass(frozen=True)
class FittedFusion:
    """A fitted fusion model.

    Attributes
    ----------
    network : FusionNetwork
        In evaluation mode when read from a file.
    settings : FusionSettings
        Settings of the network and its predictions.
    owners : tuple of str
        In the order of the inputs.
    sizes : Tensor
        Length of each owner's embedding, int64 ``[owners]``.
    classes : tuple of str
        Names.
    fingerprints : tuple of str
        Fingerprints of the frozen models that computed the training embeddings.
    given_graph : Tensor or None
        The given graph, ``[owners, owners]``.
    seed : int
        Seed of the experiment.
    columns : mapping of str to sequence of str
        Names of the columns of owners whose embeddings were data frames.
    class_type : str
        NumPy's type of the classes, such as ``int64``; empty for text.
    """

    network: FusionNetwork
    settings: FusionSettings
    owners: tuple[str, ...]
    sizes: Tensor
    classes: tuple[str, ...]
    fingerprints: tuple[str, ...]
    given_graph: Tensor | None
    seed: int
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    class_type: str = ""

    def write(self, path: Path) -> None:
        """Write the model atomically."""
        state: dict[str, Any] = {
            "settings": select_settings(FusionSettings, self.settings.as_table(), "the fusion's settings").as_table(),
            "owners": list(self.owners),
            "sizes": self.sizes,
            "classes": list(self.classes),
            "fingerprints": list(self.fingerprints),
            "seed": self.seed,
            "network": self.network.state_dict(),
        }
        if self.columns:
            state["columns"] = {owner: list(names) for owner, names in self.columns.items()}
        if self.class_type:
            state["class-type"] = self.class_type
        save_state(path, state | ({} if self.given_graph is None else {"given": self.given_graph}))

    @classmethod
    def read(cls, path: Path) -> FittedFusion:
        """Read a model. Raises RunError when the file is missing, broken or not such a model."""
        state = load_state(path)
        try:
            settings = FusionSettings.model_validate(state["settings"])
            classes, given_graph = tuple(state["classes"]), state.get("given")
            network = build_network(settings, state["sizes"], len(classes), given_graph, state["seed"])
            network.load_state_dict(state["network"])
            class_type = str(state.get("class-type", ""))
            _ = restored_classes(classes, class_type)
            columns = {owner: tuple(names) for owner, names in state.get("columns", {}).items()}
        except Exception as error:
            raise RunError(f"{path} is not a fusion model of this version: {error}") from None
        network.eval()
        return cls(
            network=network,
            settings=settings,
            owners=tuple(state["owners"]),
            sizes=state["sizes"],
            classes=classes,
            fingerprints=tuple(state["fingerprints"]),
            given_graph=given_graph,
            seed=state["seed"],
            columns=columns,
            class_type=class_type,
        )

    @property
    def typed_classes(self) -> NDArray[Any]:
        """The classes, converted to ``class_type``."""
        return restored_classes(self.classes, self.class_type)

    @property
    def graph(self) -> ClientGraph | None:
        """The graph over the owners, learned or given; None for networks without one, and for ensembles."""
        if not isinstance(self.network, GraphFusion) or self.network.consensus is None:
            return None
        weights = self.network.consensus.expected().cpu()
        directed = self.settings.graph == "given" and not torch.equal(weights, weights.T)
        return ClientGraph.from_dense(self.owners, weights, directed=directed)

    @property
    def alignment(self) -> Tensor | None:
        """The matrices P_i, ``[owners, aligned, size]``; None without alignment, and for ensembles."""
        if not isinstance(self.network, GraphFusion) or self.settings.alignment == "none":
            return None
        return self.network.alignment.matrices().detach().cpu()

    def predict(
        self, embeddings: Tensor, present: Tensor, draws: int | None = None, seed: int | None = None
    ) -> Prediction:
        """Predict samples.

        Parameters
        ----------
        embeddings : Tensor
            float32 ``[samples, owners, size]``; size may be shorter than in training if the owners with longer
            embeddings have no sample.
        present : Tensor
            bool ``[samples, owners]``.
        draws, seed : int, optional
            Number and seed of the graphs over which predictions are averaged; by default as in training.
        """
        embeddings = pad(embeddings, (0, int(self.sizes.max()) - embeddings.shape[2]))
        number, own = self.settings.draws if draws is None else draws, self.seed if seed is None else seed
        return predict(self.network, embeddings, present, number, own, self.settings.average)

    @property
    def parameters(self) -> Tensor:
        """All numbers of the network, ``[parameters]``."""
        return flattened(self.network.state_dict())

    @property
    def models(self) -> dict[str, str]:
        """The fingerprints by owner."""
        return dict(zip(self.owners, self.fingerprints, strict=True))


def fit_joined(
    settings: FusionSettings,
    data: FusionData,
    owners: Sequence[str],
    classes: Sequence[str],
    seed: int,
    fingerprints: Sequence[str] = (),
    on_epoch: Callable[[FusionEpoch], None] | None = None,
    **further: Any,
) -> tuple[FittedFusion, FusionFit]:
    """Fit the fusion of ``settings`` to joined and split samples.

    Raises DataError or RunError as :func:`fedgraph.fusion.training.fit`.

    Parameters
    ----------
    settings : FusionSettings
        Settings of the network and its training.
    data : FusionData
        The samples.
    owners, classes : sequence of str
        Their names.
    seed : int
        Seed of the training.
    fingerprints : sequence of str
        Fingerprints of the owners' frozen models, if known.
    on_epoch : callable, optional
        Called after every epoch.
    **further
        Further fields of :class:`FittedFusion`.
    """
    settings.warn_unaligned(owners, data.present, data.split == SAMPLE_SPLITS.index("train"))
    found = fit(settings, data, seed, on_epoch)
    known = tuple(fingerprints) or ("",) * len(owners)
    fusion = FittedFusion(
        found.network, settings, tuple(owners), data.sizes, tuple(classes), known, data.given_graph, seed, **further
    )
    return fusion, found


def class_dtype(classes: NDArray[Any]) -> str:
    """Return NumPy's type of integer, float or bool classes; empty for all others."""
    return classes.dtype.name if classes.dtype.kind in "biuf" else ""


def restored_classes(names: Sequence[str], class_type: str) -> NDArray[Any]:
    """Convert names of classes to ``class_type``. Raises ValueError for names that are not of this type."""
    if not class_type:
        return np.array(names)
    kind = np.dtype(class_type)
    if kind.kind not in "biuf":
        raise ValueError(f"classes cannot be of the type {class_type}")
    if kind.kind == "b":
        if not set(names) <= {"True", "False"}:
            raise ValueError("classes are not truth values")
        return np.array([name == "True" for name in names])
    number = float if kind.kind == "f" else int
    return np.array([number(name) for name in names], kind)
