"""Settings of FedNGM, ``[fedngm]`` and its tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from fedgraph.data.encoding import ScalingSettings
from fedgraph.graphical import StatisticsSettings
from fedgraph.graphical.inference import SamplingSettings
from fedgraph.graphical.learning import DistillationSettings, MergeSettings
from fedgraph.graphical.network import NGMSettings, NGRSettings
from fedgraph.graphical.recovery import RecoverySettings
from fedgraph.support.settings import Settings


class FedNGMScaling(ScalingSettings):
    """How numbers are scaled to units in a federation; the other keys as for one table.

    Attributes
    ----------
    source : beside ``given``, ``own`` and ``shared-ranges``, ``public``: quantiles of the public rows.
    """

    source: Literal["given", "own", "shared-ranges", "public"] = "own"  # type: ignore[assignment]


class FedNGMRecovery(RecoverySettings):
    """How the graph of the common features is found; the other keys as for one table.

    Attributes
    ----------
    source : ``own-rows``: every client recovers a graph, and the server merges them, as in the paper;
             ``summed-statistics``: the server recovers the graph of the pooled rows from sums over the rows of all
             clients (:mod:`fedgraph.graphical.recovery.summed`), which finds dependencies that are rare at each client.
             ``[fedngm.statistics] noise`` is added to each client's sums.
    masks  : the server only learns the sum over all clients, in which masks cancel
             (:mod:`fedgraph.privacy.secret.masks`). Takes one more exchange.
    target_neighbours : fewest neighbours of the targets that ``[fedngm]`` names; with 0, as in the paper, a target of
             small tables may have none, and is then predicted by its mean.
    """

    source: Literal["own-rows", "summed-statistics"] = "own-rows"
    target_neighbours: int = Field(default=4, ge=0)
    masks: bool = False

    @model_validator(mode="after")
    def _sums_are_of_the_lasso(self) -> FedNGMRecovery:
        if self.source == "summed-statistics" and self.method != "graphical-lasso":
            raise ValueError('source = "summed-statistics" needs method = "graphical-lasso"')
        if self.masks and self.source == "own-rows":
            raise ValueError('masks need source = "summed-statistics"')
        return self


class FedNGMSettings(Settings):
    """``[fedngm]``: graphs, models, and how the clients' models become one.

    Attributes
    ----------
    model        : ``ngm``: neural graphical models over a consensus graph; ``ngr``: neural graph revealers, which learn
                   their graphs in training.
    global_model : how the clients' models are combined: ``distilled``, a model of samples from all of them, as in the
                   paper; ``average``, the mean of their parameters, trained further by the clients if ``rounds`` is
                   above 1 (FedAvg); ``pooled``, one model of all rows without a federation, for comparison, with all
                   clients on one node.
    personal     : the model of each client: ``stitched``, the global model with its weights unchanged and new units for
                   private features, as in the paper; ``fine-tuned``, the global model trained further on the client's
                   rows; ``none``.
    rounds       : rounds of ``average``.
    targets      : features that are predicted from all others to evaluate models; by default every common one.
    yardsticks   : also evaluate gradient-boosted trees, with and without class weights, and linear models, which each
                   client trains on its own rows for every target, and what is the same for every row: ``mean`` (of
                   categories how frequent each is) and ``median`` (the most frequent category); with ``global-model =
                   "pooled"`` they are trained on all rows.
    sample_quality : compare samples of the global model with each client's test rows, and with public rows, where there
                   are 10 or more.
    marginalised : most test and public rows with missing values, for each target, that are predicted marginalised over
                   these, as :class:`fedgraph.graphical.model.GraphicalModel` and ``fedgraph predict`` do. In others,
                   missing values are replaced by means, which is faster, and what the authors' program does.
    hidden       : if above 0, also score (as ``hidden-<target>``) predictions of targets with this random share of the
                   other values hidden, the same for all models, in at most 1,000 rows, marginalised over unknown
                   values.
    disputes     : features that clients define differently are an ``error``, or ``private`` to each.
    statistics   : how clients disclose their ranges and sums, if scaling or recovery asks for them.
    ngm          : the networks of ``model = "ngm"``, and their training.
    ngr          : the networks of ``model = "ngr"``, and their training.
    recovery     : how the graph of the common features is found.
    merge        : how the graphs of clients are merged.
    scaling      : how numbers are scaled to units.
    distillation : the samples on which the global model is trained.
    sampling     : how rows are drawn from a model.
    """

    model: Literal["ngm", "ngr"] = "ngm"
    global_model: Literal["distilled", "average", "pooled"] = "distilled"
    personal: Literal["stitched", "fine-tuned", "none"] = "stitched"
    rounds: PositiveInt = 1
    targets: tuple[str, ...] = ()
    yardsticks: bool = False
    sample_quality: bool = False
    marginalised: int = Field(default=1000, ge=0)
    hidden: float = Field(default=0.0, ge=0, lt=1)
    disputes: Literal["error", "private"] = "error"
    recovery: FedNGMRecovery = Field(default_factory=FedNGMRecovery)
    merge: MergeSettings = Field(default_factory=MergeSettings)
    scaling: FedNGMScaling = Field(default_factory=FedNGMScaling)
    statistics: StatisticsSettings = Field(default_factory=StatisticsSettings)
    ngm: NGMSettings = Field(default_factory=NGMSettings)
    ngr: NGRSettings = Field(default_factory=NGRSettings)
    distillation: DistillationSettings = Field(default_factory=DistillationSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)

    @model_validator(mode="after")
    def _rounds_are_of_an_average(self) -> FedNGMSettings:
        if self.rounds > 1 and self.global_model != "average":
            raise ValueError('rounds need global-model = "average"')
        return self

    @property
    def disclosed(self) -> tuple[str, ...]:
        """Statistics of values that clients disclose in a run, a release each: ``ranges``, ``sums``."""
        ranges = self.scaling.source == "shared-ranges"
        # Neural graph revealers need no graph.
        sums = self.model == "ngm" and self.recovery.source == "summed-statistics"
        return ("ranges",) * ranges + ("sums",) * sums

    @property
    def disclosed_loss(self) -> tuple[float, float] | None:
        """Epsilon and delta of all releases of a run about a row together; None without noise, or without a release."""
        noise = self.statistics.noise
        if noise is None or not self.disclosed:
            return None
        (epsilon, delta), releases = noise.loss, len(self.disclosed)
        return releases * epsilon, releases * delta

    @property
    def network(self) -> NGMSettings:
        """The settings of the networks, ``ngm`` or ``ngr``."""
        return self.ngr if self.model == "ngr" else self.ngm
