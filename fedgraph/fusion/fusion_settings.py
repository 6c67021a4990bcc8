"""Settings of the server of F3: alignment, consensus graph, fusion network and training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.fusion.layers import Scaling
from fedgraph.fusion.prediction import Average
from fedgraph.support.devices import chosen
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Settings

log = logging.getLogger("fedgraph")

SingleFusion = Literal["graph", "mean-pooling", "transformer", "concatenation"]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
DropoutShare = Annotated[float, Field(ge=0, lt=1)]

_MEMBERS: dict[SingleFusion, int] = {"graph": 3, "concatenation": 3}


class FusionSettings(Settings):
    """The fusion of embeddings at the server.

    Attributes
    ----------
    fusion : ``graph``: two layers of graph convolution with skip connections, then the mean over owners;
        ``mean-pooling``: the same without a graph (eq. 5 of the paper when alignment is none); ``transformer``;
        ``concatenation``: a multi-layer perceptron on the embeddings of all owners, which is never aligned;
        ``ensemble``: several of these, trained separately, whose probabilities are averaged.
    members : number of networks of each kind in the ensemble, with different random numbers.
    member_weights : ``equal``, or those of maximum likelihood on ``validation`` samples.
    scaling : of each owner's embeddings, by its training samples: ``none``; ``owner``, to mean 0 and an average
        variance of 1.
    alignment : ``soft``: a free matrix per owner; ``hard``: nearly a permutation per owner; ``none``: embeddings
        are used unchanged, padded with zeros where sizes differ.
    alignment_trained    : false keeps the initial matrices.
    alignment_affine     : add a trained offset to each owner's aligned embedding, with alignment = ``soft``.
    sinkhorn : initial matrix of a hard alignment: ``square`` (M * M) or ``sigmoid`` (exp(100 sigmoid(M))).
    sinkhorn_entropy : weight in the loss of the mean row entropy (nats) of hard alignments, which favours
        permutations; 0.01 in the released program, not in the paper.
    aligned_size : length of an aligned embedding; None for that of the longest embedding.
    graph : ``icdf``: learned edge probabilities, drawn by the inverse CDF; ``gumbel``: by Gumbel-Softmax;
        ``neighbours``: the nearest by learned features; ``given``: the client graph of [graph]; ``none``.
    reference : the distribution of ``icdf``: Normal, Laplace, Cauchy, Uniform, Gumbel, Logistic, or another of
        torch.distributions with an inverse CDF.
    reference_options    : its parameters, such as {loc = 0.0, scale = 2.0}.
    temperature : tau; drawn edges approach 0 or 1 as it decreases.
    draw_per : in training, a graph per ``sample`` or per ``batch``; ``never``: the learned edge probabilities are
        the weights of the graph, in training and in predictions.
    draws                : graphs over which predictions are averaged; the same for all samples.
    average : quantity averaged over them: ``probabilities``, or ``logits`` as in the released program.
    neighbours : number of neighbours of each owner, with graph = ``neighbours``.
    absent : owners that lack a sample are ``left-out`` of the graph and the mean, or have ``zeros`` for features.
    hidden               : width of the first layer of graph and mean-pooling.
    head : widths of hidden layers between the mean over owners and the classes; empty in the paper, where logits
        are sums over owners.
    concatenation_hidden : widths of the hidden layers of concatenation.
    epochs, patience : maximum number of epochs, and of epochs without improvement in validation.
    monitor : validation criterion: ``loss`` or ``auc``.
    calibrated : after training, calibrate the logits (of each member of an ensemble) on validation samples by a
        factor and an offset. Useful with monitor = "auc", which considers only the order of samples.
    learning_rates : each is tried; the one with the best validation is kept.
    batch_size : samples per training step.
    owner_dropout : share of owners dropped at random from each training sample in every step, which regularises the
        network. Each of several is tried, and the one with the best validation is kept, as with learning rates.
    weight_decay : decoupled (AdamW), of weights only, not of biases and graphs.
    workers : threads that draw graphs; None uses all cores. Results do not depend on it.
    compile : train with native code, if the machine has a C++ compiler: ``concatenation``, and ``graph`` and
        ``mean-pooling`` with soft or no alignment and no graph or a learned one (up to 64 owners, by Gumbel-Softmax
        or the normal distribution), from 300 training samples. Much faster; random numbers differ, but results have
        the same distribution.
    device : ``cpu``, ``cuda``, or ``auto`` for a GPU if available.
    """

    fusion: Literal["graph", "mean-pooling", "transformer", "concatenation", "ensemble"] = "graph"
    members: dict[SingleFusion, Positive] = Field(default_factory=_MEMBERS.copy, min_length=1)
    member_weights: Literal["equal", "validation"] = "equal"
    scaling: Scaling = "none"
    alignment: Literal["soft", "hard", "none"] = "soft"
    alignment_trained: bool = True
    alignment_affine: bool = False
    sinkhorn: Literal["square", "sigmoid"] = "square"
    sinkhorn_entropy: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    aligned_size: int | None = Field(default=None, ge=1)
    graph: Literal["icdf", "gumbel", "neighbours", "given", "none"] = "icdf"
    reference: str = "Normal"
    reference_options: dict[str, float] = Field(default_factory=dict)
    temperature: float = Field(default=0.1, ge=1e-6, allow_inf_nan=False)
    draw_per: Literal["sample", "batch", "never"] = "sample"
    draws: int = Field(default=10, ge=1)
    average: Average = "probabilities"
    neighbours: int = Field(default=10, ge=1)
    absent: Literal["left-out", "zeros"] = "left-out"
    hidden: int = Field(default=8, ge=1)
    head: tuple[Positive, ...] = ()
    concatenation_hidden: tuple[Positive, ...] = (64,)
    epochs: int = Field(default=500, ge=1)
    patience: int = Field(default=50, ge=1)
    monitor: Literal["loss", "auc"] = "loss"
    calibrated: bool = False
    learning_rates: tuple[Rate, ...] = Field(default=(0.01, 0.001), min_length=1)
    batch_size: int = Field(default=100, ge=1)
    owner_dropout: DropoutShare | Annotated[tuple[DropoutShare, ...], Field(min_length=1)] = 0.0
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    workers: int | None = Field(default=None, ge=1)
    compile: bool = True
    device: Literal["cpu", "auto", "cuda"] = "auto"

    @property
    def dropout_shares(self) -> tuple[float, ...]:
        """All values of ``owner_dropout`` to try."""
        return self.owner_dropout if isinstance(self.owner_dropout, tuple) else (self.owner_dropout,)

    def trials(self) -> list[tuple[FusionSettings, float]]:
        """Return all pairs of settings with a single owner dropout, and a learning rate."""
        single = [self.model_copy(update={"owner_dropout": share}) for share in self.dropout_shares]
        return [(each, rate) for each in single for rate in self.learning_rates]

    @classmethod
    def practical(cls) -> dict[str, Any]:
        """Return recommended values that differ from the paper's.

        Chosen on validation samples of road sensors, patches of digits and grids.
        """
        return {
            "fusion": "ensemble",
            "members": _MEMBERS.copy(),
            "scaling": "owner",
            "alignment_affine": True,
            "draw_per": "never",
            "hidden": 32,
            "head": (32,),
            "monitor": "auc",
            "owner_dropout": (0.0, 0.2),
        }

    def warn_unaligned(self, owners: Sequence[str], present: Tensor, training: Tensor) -> None:
        """Warn about owners without training samples, whose random alignment enters predictions.

        Parameters
        ----------
        owners : sequence of str
            The owners.
        present : Tensor
            bool ``[samples, owners]``.
        training : Tensor
            Training samples: positions, or bool ``[samples]``.
        """
        if self.fusion == "concatenation" or self.alignment == "none" or not self.alignment_trained:
            return
        lacking = present.any(0) & ~present[training].any(0)
        if bool(lacking.any()):
            log.warning(
                "%s: no training samples; the alignment remains random, and enters predictions of samples that these "
                "owners have; add training samples, or leave these owners out",
                ", ".join(owners[place] for place in lacking.nonzero().flatten().tolist()),
            )

    def networks(self, seed: int) -> list[tuple[FusionSettings, int]]:
        """Return settings and seed of each network to train: the members of an ensemble, or a single network.

        The first network of each kind has the seed of a single network.
        """
        if self.fusion != "ensemble":
            return [(self, seed)]
        found: list[tuple[FusionSettings, int]] = []
        for kind, number in self.members.items():
            single = self.model_copy(update={"fusion": kind})
            for place in range(number):
                found.append((single, seed if place == 0 else derive_seed(seed, "member", place)))
        return found

    def torch_device(self) -> torch.device:
        """Return the device on which the fusion is computed.

        Raises ExperimentError when ``cuda`` is set and not available.
        """
        return chosen(self.device, "device")
