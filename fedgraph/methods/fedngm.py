"""Settings of federated graphical models, which server and nodes both see."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from fedgraph.data.tables.scaling import ScalingSettings
from fedgraph.graphical.asking.sampling import SamplingSettings
from fedgraph.graphical.learning.distillation import DistillationSettings
from fedgraph.graphical.learning.merge import MergeSettings
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.graphical.recovery import RecoverySettings
from fedgraph.graphical.shared_statistics import StatisticsSettings
from fedgraph.support.settings import Settings


class FedNGMScaling(ScalingSettings):
    """How numbers become units in a federation; the other keys as for one table.

    source : beside ``given``, ``own`` and ``shared-ranges``, for which nodes have to consent, ``public``: quantiles of
             the rows that everybody may see.
    """

    source: Literal["given", "own", "shared-ranges", "public"] = "own"  # type: ignore[assignment]


class FedNGMRecovery(RecoverySettings):
    """How the graph of the common features is found; the other keys as for one table.

    source : ``own-rows``: every client recovers a graph, and the server merges them, as in the paper;
             ``summed-statistics``: the server recovers one graph from sums over the rows of all clients
             (:mod:`fedgraph.graphical.recovery.summed`), for which nodes have to consent, and which finds what is
             rare at each of many small clients. It is that of the rows pooled. ``[fedngm.statistics] noise`` is on
             each client's sums.
    masks  : the server gets nothing but the sum over all clients: each adds to its own what the others take away
             (:mod:`fedgraph.privacy.secret.masks`), for an exchange more.
    target_neighbours : of the targets that ``[fedngm]`` names; 0, as in the paper, leaves a target of small tables
             without any neighbour, to be predicted by its mean.
    """

    source: Literal["own-rows", "summed-statistics"] = "own-rows"
    target_neighbours: int = Field(default=4, ge=0)
    masks: bool = False

    @model_validator(mode="after")
    def _sums_are_of_the_lasso(self) -> FedNGMRecovery:
        if self.source == "summed-statistics" and self.method != "graphical-lasso":
            raise ValueError('source = "summed-statistics" is for method = "graphical-lasso"')
        if self.masks and self.source == "own-rows":
            raise ValueError('masks are of sums: set source = "summed-statistics"')
        return self


class FedNGMSettings(Settings):
    """``[fedngm]``: graphs, models, and how the clients' models become one.

    model        : ``ngm``: neural graphical models over a consensus graph; ``ngr``: neural graph revealers, which find
                   their graphs as they are trained.
    global_model : what the clients' models become: ``distilled``, a model of samples from all of them, as in the paper;
                   ``average``, the mean of their parameters, trained on by the clients in further rounds if ``rounds``
                   says so (FedAvg); ``pooled``, no federation at all but one model of all rows, for comparison, with
                   all clients on one node.
    personal     : what each client makes of it: ``stitched`` to new units for its private features, with none of the
                   global model's weights changed, as in the paper; ``fine-tuned``, trained on with the client's rows;
                   ``none``.
    rounds       : of an average.
    targets      : features that are predicted from all others to measure models; by default every common one.
    yardsticks   : measure what gradient-boosted trees, with classes weighted or not, and linear models predict too,
                   which each client trains on its own rows for every target; with ``global-model = "pooled"`` they are
                   trained on everybody's rows.
    sample_quality : compare samples of the global model with each client's test rows, and with public rows.
    hidden       : if above 0, measure as ``hidden-<target>`` too how well targets are predicted where this share of the
                   other values is hidden at random, the same for all models, in 1,000 rows at most. Graphical models
                   then answer as :class:`fedgraph.graphical.model.GraphicalModel` does, over all that is unknown.
    disputes     : features that clients do not agree on are an error, or private to each (``private``).
    statistics   : what nodes are asked to tell, a table ``[fedngm.statistics]``.
    ngm, ngr, recovery, merge, scaling, distillation, sampling : tables of their own.
    """

    model: Literal["ngm", "ngr"] = "ngm"
    global_model: Literal["distilled", "average", "pooled"] = "distilled"
    personal: Literal["stitched", "fine-tuned", "none"] = "stitched"
    rounds: PositiveInt = 1
    targets: tuple[str, ...] = ()
    yardsticks: bool = False
    sample_quality: bool = False
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
            raise ValueError('rounds are of global-model = "average"')
        return self

    @property
    def network(self) -> NGMSettings:
        """Of the networks: ``ngm`` or ``ngr``."""
        return self.ngr if self.model == "ngr" else self.ngm
