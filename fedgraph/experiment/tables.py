"""Tables of an experiment file that describe the run itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from fedgraph.data import SplitName
from fedgraph.support.settings import Settings


class ExperimentTable(Settings):
    """``[experiment]``: the method, and the policy for absent clients.

    Attributes
    ----------
    name : prefix of run folders.
    method      : a built-in method; or strategy and client by dotted path (the client's default fits the strategy).
    rounds, seed : communication rounds; methods of phases (f3, f3-forecast, simple-forecast, vfl, fedngm) have none;
                  everything random follows from the seed.
    min_clients : minimum number of clients in every round.
    on_missing : policy for a client without a usable reply: ``fail`` ends the run, ``skip`` excludes the client from
                   the round's aggregation, ``keep-last`` uses its last usable reply.
    wait        : seconds to wait at the start for nodes to connect.
    timeout     : seconds to wait for the replies of one exchange.
    """

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    method: str | None = None
    strategy: str | None = None
    client: str | None = None
    rounds: int = Field(default=10, ge=0)
    seed: int = Field(default=0, ge=0)
    min_clients: PositiveInt = 1
    on_missing: Literal["fail", "skip", "keep-last"] = "fail"
    wait: float = Field(default=60.0, ge=0)
    timeout: float = Field(default=3600.0, gt=0)


class AgreementTable(Settings):
    """``[agreement]``: what a site leaves open, and its own limits; read from the site's copy alone.

    Attributes
    ----------
    open : keys that may differ from those of the site's copy, such as ``"train.learning-rate"``, ``"experiment.seed"``
           or ``"experiment.rounds <= 200"``; by default only the name of the run. Rounds also bound how many different
           trainings of a client are answered, over all runs.
    least_rows : fewest rows about which a node answers: of training, of each split, of each sum, of each category that
           it names. New samples, of which predictions are asked for, are told one by one.
    epsilon, delta : limit on all noisy releases of a kind (embeddings, updates) about the same rows, over all runs; by
           default that of the noise of the experiment. Methods that release without noise are refused.
    """

    open: tuple[str, ...] = ()
    least_rows: PositiveInt = 10
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)


class EvaluationTable(Settings):
    """``[evaluation]``: metrics, their schedule, and early stopping.

    Attributes
    ----------
    splits : evaluated splits of each client.
    every : rounds between evaluations; the end of the run is always evaluated.
    restore_best : end with the models of the best evaluation, when early stopping is on.
    average_last : end with the mean of each client's models over this many last rounds; the metrics of the last models
               themselves are in ``summary.json`` under names that end in ``-last``. A run that ends early keeps its
               last.
    horizons : forecast steps reported separately, counted from 1; by default 3, 6 and 12, as far as a forecast goes.
               Their errors are named by the time ahead, as ``mae-60min``, ``mae-3hours`` or ``mae-7days``.
    missing_as : forecasts are also measured with missing readings counted as this value, in their unit, as some
               published tables do (0.0 for the speeds of METR-LA). Names of these errors end in -unmasked, as
               ``test/mae-60min-unmasked`` does.
    unseen_classes : of classification: also measure each client's accuracy on examples of classes that it has none of
               in training, as ``test/accuracy-unseen``; a client that has all classes has no value. It shows what
               clients learn from others, with ``[data] test = "shared"``.
    monitor  : metric watched for early stopping as ``<split>/<metric>``, e.g. ``validation/mae``; needs ``patience``:
               the run ends after so many evaluations without a better mean over clients.
    targets  : value by metric, e.g. ``{"test/accuracy" = 0.98}``; ``rounds_to_target`` in ``summary.json`` contains
               after how many rounds the mean over clients reached it, and after how many the first client did;
               ``bytes_to_target`` and ``seconds_to_target`` the bytes sent to and from each client until then, and the
               time.
    stop_at_targets : end the run once all targets are reached, by the ``mean`` or by the ``first`` client.
    compare_peers : compare the models that the run ends with, pair by pair: their parameters, and the classes that
               they predict for the test examples, which must be the same for all clients (``[data] test = "shared"``)
               and whose true classes go to the server. Makes ``peers.npz``, ``peers.csv``, and means in
               ``summary.json``; for classification by methods whose clients have whole models.
    forecasts : also write the final models' forecasts for the test windows, as ``csv`` or ``parquet``: a file for
               each client with the time of each step, the forecast, and the reading where there is one, in their unit;
               and with how many readings the window had that it is forecast from. Files stay on the client's node, in
               ``<state-dir>/forecasts/<run>``; those of ``fedgraph run`` are in the run folder (``Run.forecasts``).
    yardsticks : of a forecast: with each method, ``fedgraph run`` also runs its baselines, each client's last reading,
               its usual week and a ridge regression (``simple-forecast``), and the same method over a permuted client
               graph where it uses one. ``flwr run`` runs the method alone.
    """

    splits: tuple[SplitName, ...] = ("validation", "test")
    every: PositiveInt = 1
    horizons: tuple[PositiveInt, ...] | None = None
    missing_as: float | None = Field(default=None, allow_inf_nan=False)
    unseen_classes: bool = False
    monitor: str | None = None
    patience: PositiveInt | None = None
    restore_best: bool = True
    average_last: Annotated[int, Field(ge=2)] | None = None
    targets: dict[str, float] = Field(default_factory=dict)
    stop_at_targets: Literal["mean", "first"] | None = None
    compare_peers: bool = False
    forecasts: Literal["csv", "parquet"] | None = None
    yardsticks: bool = False

    @model_validator(mode="after")
    def _watched(self) -> EvaluationTable:
        if (self.monitor is None) != (self.patience is None):
            raise ValueError("monitor and patience go together")
        if self.average_last is not None and self.monitor is not None and self.restore_best:
            raise ValueError(
                "average-last and monitor both choose the models that the run ends with; leave one out, "
                "or set restore-best = false"
            )
        if self.stop_at_targets is not None and not self.targets:
            raise ValueError("stop-at-targets needs targets")
        watched = dict.fromkeys(self.targets, "targets has")
        if self.monitor is not None:
            watched[self.monitor] = "monitor is"
        for name, where in watched.items():
            split, slash, metric = name.partition("/")
            if split not in self.splits or not slash or not metric:
                raise ValueError(f"{where} '<split>/<metric>' with a split of {self.splits}, e.g. validation/loss")
        return self


class FairnessTable(Settings):
    """``[fairness]``: correlation of the clients' scores with those of local training.

    Fairness is 100 times the correlation, over clients, of both scores (Gorbett, Shirazi, Ray; IEEE
    Big Data 2023, section IV.D): ``fairness`` in ``summary.json``, and by round in ``metrics.jsonl``.

    Attributes
    ----------
    stand_alone : the folder of a finished run with the same [data] in which each client trains alone (method
                  ``local``); looked for next to the experiment, and in the current folder.
    metric : the correlated metric, as ``<split>/<metric>``.
    stop_below  : end the run when fairness has been at this value or above it, and falls below; the models are then
                  those of the last evaluation at which it was not below.
    """

    stand_alone: str
    metric: str = "test/accuracy"
    stop_below: float | None = Field(default=None, ge=-100, le=100)


def _tracker(name: str) -> str:
    if name not in ("tensorboard", "mlflow", "wandb") and ":" not in name:
        raise ValueError("a tracker is 'tensorboard', 'mlflow', 'wandb' or 'package.module:Class'")
    return name


class OutputTable(Settings):
    """``[output]``: run folder, report and trackers.

    Attributes
    ----------
    dir    : folder in which run folders are created.
    checkpoint_every : rounds between checkpoints.
    resume : run folder to continue, instead of starting a new one.
    report : write report.html at the end of a run.
    track  : trackers that receive parameters, metrics by round and results:
             ``tensorboard``, ``mlflow``, ``wandb``, or a custom class by dotted path (see
             ``fedgraph.runs.tracking``). They write into the run folder, unless ``MLFLOW_TRACKING_URI``,
             ``WANDB_MODE`` etc. are set.
    """

    dir: str = "runs"
    checkpoint_every: PositiveInt = 1
    resume: str | None = None
    report: bool = True
    track: tuple[Annotated[str, AfterValidator(_tracker)], ...] = ()
