"""Settings of the server of F3: alignment, consensus graph, fusion network and its training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.fusion.prediction import Average
from fedgraph.fusion.scaling import Scaling
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
        ``ensemble``: several of these, trained one by one, whose probabilities are averaged.
    members              : of the ensemble, how many networks of each kind, from different random numbers.
    member_weights       : in that average, ``equal``, or those with the largest likelihood of ``validation`` samples.
    scaling : of each owner's embeddings before anything else, by its training samples: ``none``; ``owner``, to mean
        0 and, on average over its numbers, variance 1.
    alignment : ``soft``: a free matrix per owner; ``hard``: nearly a permutation per owner; ``none``: embeddings as
        they are, padded with zeros where sizes differ.
    alignment_trained    : false keeps the initial matrices.
    alignment_affine     : add a trained offset to each owner's aligned embedding, with alignment = ``soft``.
    sinkhorn             : what a hard alignment starts from: ``square`` (M * M) or ``sigmoid`` (exp(100 sigmoid(M))).
    sinkhorn_entropy     : weight, in the loss, of the entropy of the rows of all hard alignments (mean, in nats), which
        draws them to permutations; 0.01 in the released program, not in the paper.
    aligned_size         : length of an aligned embedding; None: that of the longest embedding of any owner.
    graph : ``icdf``: learned edge probabilities, drawn by the inverse CDF; ``gumbel``: by Gumbel-Softmax;
        ``neighbours``: the nearest by learned features; ``given``: the client graph of [graph]; ``none``.
    reference            : the distribution whose inverse CDF is used: Normal, Laplace, Cauchy, Uniform, Gumbel,
        Logistic, or another of torch.distributions that has one.
    reference_options    : its parameters, such as {loc = 0.0, scale = 2.0}.
    temperature          : tau; the smaller, the nearer drawn edges are to 0 or 1.
    draw_per             : in training, a graph for each ``sample`` or one for a whole ``batch``; ``never``: the learned
        probabilities of edges are the weights of the graph, in training and in predictions.
    draws                : graphs over which predictions are averaged; the same for all samples.
    average              : what is averaged over them: ``probabilities``, or ``logits`` as in the released program.
    neighbours           : of each owner, with graph = ``neighbours``.
    absent               : owners that lack a sample are ``left-out`` of the graph and of the mean, as if they did not
        exist, or count as owners with ``zeros`` for features.
    hidden               : width of the first layer of graph and mean-pooling.
    head                 : widths of hidden layers between their mean over owners and the classes; none in the paper,
        where logits are sums over owners.
    concatenation_hidden : widths of the hidden layers of concatenation.
    epochs, patience     : largest number of epochs, and of epochs without a better validation.
    monitor              : what is better in validation: a lower ``loss``, or a higher ``auc``.
    calibrated           : after training, fit a factor and an offset of the logits to validation samples and build them
        into the network, so that probabilities are frequencies and, of two classes, 0.5 is the right threshold. With
        monitor = "auc" it may not be, as that looks at the order of samples alone. Of an ensemble, each member.
    learning_rates       : each is tried; the one with the best validation is kept, of those that do not diverge.
    batch_size           : samples of a training step.
    owner_dropout        : share of owners that each training sample is learned without, drawn anew in every step; it
        keeps a network from relying on any single owner, and from learning training samples by heart. Of several, each
        is tried, and the one with the best validation is kept, as with learning rates.
    weight_decay         : of weights, not of biases and graphs, as in AdamW.
    class_weights        : of samples in the training loss: ``none``; ``balanced``, so that all classes count the same.
    workers              : threads that draw graphs; None uses all cores. No result depends on it.
    compile              : train with included native code, where the machine has a C++ compiler: ``concatenation``, and
        ``graph`` and ``mean-pooling`` with soft or no alignment, where graphs are learned (of up to 64 owners, by
        Gumbel-Softmax or the normal distribution) or there are none; from 300 training samples on. Many times as fast,
        with other random numbers: results have the same distribution.
    device               : ``cpu``, ``cuda``, or ``auto``, a GPU where there is one.
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
    class_weights: Literal["none", "balanced"] = "none"
    workers: int | None = Field(default=None, ge=1)
    compile: bool = True
    device: Literal["cpu", "auto", "cuda"] = "auto"

    @property
    def dropout_shares(self) -> tuple[float, ...]:
        """Each share of owners to try."""
        return self.owner_dropout if isinstance(self.owner_dropout, tuple) else (self.owner_dropout,)

    def trials(self) -> list[tuple[FusionSettings, float]]:
        """Return what each network is trained with in turn: settings with one owner dropout, and a learning rate."""
        single = [self.model_copy(update={"owner_dropout": share}) for share in self.dropout_shares]
        return [(each, rate) for each in single for rate in self.learning_rates]

    @classmethod
    def practical(cls) -> dict[str, Any]:
        """Return the fields that are set otherwise than in the paper where one wants predictions, with their values.

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
        """Log a warning that names owners without training samples, whose alignment is random but used in predictions.

        Parameters
        ----------
        owners : sequence of str
            The owners.
        present : Tensor
            bool ``[samples, owners]``.
        training : Tensor
            Which samples are for training: positions, or bool ``[samples]``.
        """
        if self.fusion == "concatenation" or self.alignment == "none" or not self.alignment_trained:
            return
        lacking = present.any(0) & ~present[training].any(0)
        if bool(lacking.any()):
            log.warning(
                "of %s there are no training samples: their alignment stays as it was drawn at random, and predictions "
                "of samples that they have count it all the same; give them some, or leave these owners out",
                ", ".join(owners[place] for place in lacking.nonzero().flatten().tolist()),
            )

    def networks(self, seed: int) -> list[tuple[FusionSettings, int]]:
        """Return the settings and the seed of each network to train: the members of an ensemble, or one.

        The first network of each kind has ``seed`` itself, as it would have alone.
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

        Raises ExperimentError when CUDA is demanded and not available.
        """
        return chosen(self.device, "device")
