"""A method's local training beside that of ``[train]``: Ditto's personal models, fine-tuning, a pooled model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from fedgraph.support.settings import parse
from fedgraph.training import Cohort, TrainSettings


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
        table |= {"learning-rate": learning_rate, "learning-rate-decay": 1.0, "learning-rate-factor": 1.0}
    return parse(TrainSettings, table, where)


def cohort_with(cohort: Cohort, settings: TrainSettings, seed: int) -> Cohort:
    """The same clients as they train by other settings, or in another order; kept as long as ``cohort`` is."""
    if (settings, seed) == (cohort.settings, cohort.seed):
        return cohort
    return derived(cohort, (settings, seed), lambda: Cohort(cohort.model, cohort.data, settings, seed))


def derived(cohort: Cohort, key: Hashable, build: Callable[[], Cohort]) -> Cohort:
    """What ``build`` makes of ``cohort``, made once per ``key`` and kept as long as ``cohort`` is."""
    made = _derived.setdefault(cohort, {})
    if key not in made:
        made[key] = build()
    return made[key]


_derived: WeakKeyDictionary[Cohort, dict[Hashable, Cohort]] = WeakKeyDictionary()
