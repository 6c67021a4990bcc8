"""A method's local training beside that of ``[train]``: Ditto's personal models, fine-tuning, a pooled model."""

from __future__ import annotations

from functools import lru_cache

from fedgraph.cohort import Cohort
from fedgraph.settings import parse
from fedgraph.train_settings import TrainSettings


def second_training(
    train: TrainSettings,
    where: str,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    learning_rate: float | None = None,
) -> TrainSettings:
    """``train`` with another length or rate where one is given; a rate that is given holds in every round.

    Raises ExperimentError, naming ``where`` (``[ditto]``), when both lengths are given or ``train`` does not go with
    them.
    """
    table = train.as_table()
    if local_epochs is not None or local_steps is not None:
        lengths = {"local-epochs": local_epochs, "local-steps": local_steps}
        table = {key: value for key, value in table.items() if key not in lengths}
        table |= {key: value for key, value in lengths.items() if value is not None}
    if learning_rate is not None:
        table |= {"learning-rate": learning_rate, "learning-rate-decay": 1.0}
    return parse(TrainSettings, table, where)


@lru_cache(maxsize=64)
def cohort_with(cohort: Cohort, settings: TrainSettings, seed: int) -> Cohort:
    """The same clients as they train by other settings, or in another order; built once per process."""
    if (settings, seed) == (cohort.settings, cohort.seed):
        return cohort
    return Cohort(cohort.model, cohort.data, settings, seed)
