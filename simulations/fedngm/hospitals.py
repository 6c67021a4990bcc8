"""What models know of patients at hospitals that have different columns, beside the distribution that they are from.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.3, 2.4 and 3.3: a model of
everything is asked whatever is of interest, about whatever is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.progress import track

from fedgraph.data import open_source
from fedgraph.data.columns import Floats, Table
from fedgraph.data.encoding import to_values
from fedgraph.data.schema import Schema, infer_schema
from fedgraph.data.tables import client_table_source, hospitals
from fedgraph.experiment import load_experiment
from fedgraph.graphical import GraphicalModel, NeuralGraphicalModel
from fedgraph.graphical.scores import TargetModel, Yardstick, fit_targets, score_targets
from fedgraph.runs import Run
from fedgraph.simulations.scripts import DATA, DataDir, Out, Page, ResultsFile, Seeds
from fedgraph.simulations.scripts import run as run_script
from fedgraph.starting.running import run

_NGM, _LINEAR = "fedngm/hospitals.toml", "fedngm/hospitals-linear.toml"
_RATES = {"event": 0.1, "pressure": 0.03}
"""Learning rates of the federated linear models: the best of five on validation rows of seeds 0 to 2."""

_FEW = ("age", "sex", "pain")
_GAPS = 0.15
_DRAWS = 256
_PARTICLES = 1024
_AT_ONCE = 100

_TEXT = """\
Published at <https://arxiv.org/abs/2309.11680>.

Five hospitals have 3,000 patients together, 15 % of whose cells are missing; an event is rare. Models are asked about \
other patients of the same hospitals. RMSE from the truth: between what a model says and what the distribution says \
that patients are drawn from.

"""


@dataclass(frozen=True)
class Question:
    """What is asked, and what is known.

    title  : name of its table.
    target : the column asked for.
    hidden : share of the other cells that are missing.
    known  : the columns that may be known; None: all.
    """

    title: str
    target: str
    hidden: float = _GAPS
    known: tuple[str, ...] | None = None


QUESTIONS = (
    Question("event", "event"),
    Question("half", "event", 0.5),
    Question("few", "event", 0.0, _FEW),
    Question("pressure", "pressure"),
    Question("ejection", "ejection"),
)

Answer = Callable[[str, Table, str], Floats]
"""Of a hospital, patients and a target: numbers ``[rows]``, or probabilities ``[rows, categories]``."""


def hospitals_page(data_dir: Path, seeds: Sequence[int], tested: int) -> Page:
    """Train all models with every seed, and ask them about ``tested`` other patients of all hospitals."""
    lines: dict[str, list[dict[str, object]]] = {question.title: [] for question in QUESTIONS}
    for seed in track(seeds, "seeds"):
        models = Models(seed, data_dir)
        for question in QUESTIONS:
            found = errors(models, question, tested)
            lines[question.title] += [{"model": who, "seed": seed, **scores} for who, scores in found.items()]
    title = "Hospitals with different columns: questions to one model, and to a model for each question"
    text = _TEXT + "\n\n".join(f"## Asked for: {name}\n\n{{{name}}}" for name in lines)
    return Page(title, text, {name: pd.DataFrame(each) for name, each in lines.items()}, seeds)


def errors(models: Models, question: Question, count: int) -> dict[str, dict[str, float]]:
    """Return the errors of every model that has an answer, by its name."""
    table = hospitals.hospitals_table(count, seed=1000 + models.seed)
    asked = np.flatnonzero([value is not None for value in table.column(question.target).to_pylist()])
    schema = models.schema.select([question.target])
    values = to_values(table.part(asked), schema)
    known = _hidden(table, question, models.seed).part(asked)
    hospital = np.array(known.column("hospital").to_pylist())
    parts = {name: np.flatnonzero(hospital == name) for name in hospitals.NAMES}
    order = np.concatenate(list(parts.values())).argsort()
    found = {
        who: np.concatenate(
            [answer(name, known.part(rows), question.target) for name, rows in parts.items() if len(rows)]
        )
        for who, answer in models.answers(question).items()
    }
    exact = found["The true distribution"]
    return {who: _scores(schema, values, one[order], exact[order]) for who, one in found.items()}


def _scores(schema: Schema, values: Floats, found: Floats, exact: Floats) -> dict[str, float]:
    (name,) = schema.names
    scores = score_targets(schema, values, {name: found})[name]
    away = {"RMSE from the truth": float(np.sqrt(np.square(found - exact).mean()))}
    if found.ndim == 1:
        return {"RMSE": scores["rmse"], "MAE": scores["mae"], **away}
    chance = found[np.arange(len(found)), values[:, 0].astype(np.int64)].clip(1e-6)
    loss = {"log loss": float(-np.log(chance).mean()), "calibration error": scores["ece"]}
    return {"AUC": scores["auc"], "AUPR": scores["aupr"], **loss, **away}


def _hidden(table: Table, question: Question, seed: int) -> Table:
    """Return patients without the target, of whom some cells are missing."""
    columns = {}
    for name, column in table.columns.items():
        shown = name == "hospital" or (name != question.target and name in (question.known or hospitals.PATIENTS))
        random = np.random.default_rng([seed, *name.encode()])
        lost = random.random(table.num_rows) < (0 if name == "hospital" else question.hidden if shown else 1)
        columns[name] = pc.if_else(pa.array(lost), pa.scalar(None, column.type), column)
    return table.with_columns(columns)


class Models:
    """All models of one draw of patients, the training rows of all hospitals.

    schema : of all columns that any hospital has.
    """

    def __init__(self, seed: int, data_dir: Path) -> None:
        self.seed = seed
        keys = {"experiment.seed": seed, "data.partition-seed": seed}
        loaded = load_experiment(_NGM, [f"{key}={value}" for key, value in keys.items()])
        source = client_table_source(open_source(loaded.data, data_dir), "fedngm")
        about = source.table_schema
        tables = {name: source.load_table(name) for name in hospitals.NAMES}
        self._rows = {name: each.part("train") for name, each in tables.items()}
        self._held_out = {name: each.part("validation") for name, each in tables.items()}
        whole = {name: pa.table(each.table.columns) for name, each in tables.items()}
        every = pa.concat_tables(whole.values(), promote_options="permissive")
        joined = {name: every.column(name).combine_chunks() for name in every.column_names}
        self.schema = infer_schema(Table(joined, "all hospitals"), about)
        with TemporaryDirectory() as out:

            def made(experiment: str, more: Mapping[str, object] | None = None, nodes: int = 2) -> Run:
                return run(
                    experiment, set={**keys, **(more or {})}, nodes=nodes, data_dir=data_dir, out=out, progress=False,
                )  # fmt: skip

            found = made(_NGM)
            self._personal, self._common = found.personal_models, found.graphical_model
            pooled = {"fedngm.global-model": "pooled", "fedngm.personal": "none"}
            self._pooled = made(_NGM, pooled, nodes=1).graphical_model
            self._averaged = {}
            for target, rate in _RATES.items():
                linear = made(_LINEAR, {"data.label": target, "train.learning-rate": rate})
                self._averaged[target] = linear
                # Models and scales are read while the folder is there.
                for name in hospitals.NAMES:
                    linear.predict(self._rows[name].to_pandas().assign(hospital=name), name)
        self._alone = {name: self._fitted_alone(name) for name in hospitals.NAMES}

    def _fitted_alone(self, name: str) -> GraphicalModel:
        """Return the model that a hospital makes of its own rows, with all columns that it has."""
        rows, held_out = (part[name].to_pandas() for part in (self._rows, self._held_out))
        own = self.schema.select([each for each in self.schema.names if rows[each].notna().any()])
        targets = [question.target for question in QUESTIONS if question.target in own.names]
        estimator = NeuralGraphicalModel(targets=sorted(set(targets)), schema=own, random_state=self.seed)
        return estimator.fit(rows, validation=held_out).model_

    def answers(self, question: Question) -> dict[str, Answer]:
        """Return what every model says that knows the target, by its name."""
        target = question.target
        found: dict[str, Answer] = {"FedNGM, personal model": _of_graphical(self._personal.__getitem__)}
        if target in self._common.encoding.schema.names:
            found["FedNGM, global model"] = _of_graphical(lambda name: self._common)
        found["NGM of a hospital"] = _of_graphical(self._alone.__getitem__)
        if target in self._common.encoding.schema.names:
            found["NGM of pooled rows"] = _of_graphical(lambda name: self._pooled)
        found["Linear model of a hospital"] = self._linear({name: (name,) for name in hospitals.NAMES}, target)
        if target in self._averaged:
            found["FedAvg of a linear model"] = self._of_averaged
        found["Linear model of pooled rows"] = self._linear(dict.fromkeys(hospitals.NAMES, hospitals.NAMES), target)
        if question.known is not None:
            only = self._linear(dict.fromkeys(hospitals.NAMES, hospitals.NAMES), target, question.known)
            found["Linear model of pooled rows, for this question"] = only
        found["Mean of pooled rows"] = self._linear(
            dict.fromkeys(hospitals.NAMES, hospitals.NAMES), target, None, "mean"
        )
        found["The true distribution"] = true_answers
        return found

    def _linear(
        self,
        whose: Mapping[str, Sequence[str]],
        target: str,
        known: Sequence[str] | None = None,
        yardstick: Yardstick = "linear",
    ) -> Answer:
        """Return a model of a target of each hospital, from the rows of those that ``whose`` says."""
        schema = self.schema if known is None else self.schema.select([*known, target])
        fitted: dict[tuple[str, ...], TargetModel] = {}

        def answer(name: str, rows: Table, target: str) -> Floats:
            of = tuple(whose[name])
            if of not in fitted:
                training = np.concatenate([to_values(self._rows[each], schema) for each in of])
                fitted[of] = fit_targets(yardstick, schema, training, [target], self.seed)[target]
            return fitted[of].predict(to_values(rows, schema))

        return answer

    def _of_averaged(self, name: str, rows: Table, target: str) -> Floats:
        frame = rows.to_pandas().assign(hospital=name)
        said = self._averaged[target].predict(frame, name).sort_values("row")
        if target == "event":
            return said[["probability no", "probability yes"]].to_numpy()
        return said["predicted"].to_numpy()


def _of_graphical(model_of: Callable[[str], GraphicalModel]) -> Answer:
    def answer(name: str, rows: Table, target: str) -> Floats:
        model = model_of(name)
        if model.encoding.schema[target].is_scaled:
            return np.asarray(model.predict(rows, target, draws=_DRAWS), dtype=np.float64)
        return model.predict_proba(rows, target, draws=_DRAWS)

    return answer


def true_answers(hospital: str, rows: Table, target: str) -> Floats:
    """Return what the distribution that patients are drawn from says of a target, given all that is known.

    By likelihood weighting: what is unknown of a patient is drawn many times, causes first, and each draw is weighted
    by the likelihood of what is known.
    """
    values = {name: _codes(rows, name) for name in hospitals.PATIENTS if name not in ("hospital", target)}
    parts = np.array_split(np.arange(rows.num_rows), max(1, rows.num_rows // _AT_ONCE))
    place = float(hospitals.NAMES.index(hospital))
    return np.concatenate(
        [_weighted({name: own[part] for name, own in values.items()}, place, len(part), target) for part in parts]
    )


def _weighted(known: Mapping[str, Floats], hospital: float, count: int, target: str) -> Floats:
    random, drawn = np.random.default_rng(0), {"hospital": np.full((count, _PARTICLES), hospital)}
    weight = np.zeros((count, _PARTICLES))
    for name, column in hospitals.PATIENTS.items():
        if name == "hospital":
            continue
        even = (random.permuted(np.tile(np.arange(_PARTICLES), (count, 1)), axis=1) + 0.5) / _PARTICLES
        drawn[name] = column.drawn(drawn, even)
        if name in known:
            told = ~np.isnan(known[name])[:, None] & np.ones(_PARTICLES, dtype=bool)
            own = np.where(told, known[name][:, None], drawn[name])
            weight += np.where(told, column.log_density(drawn, own), 0)
            drawn[name] = own
    weight = np.exp(weight - weight.max(1, keepdims=True))
    mean: Floats = (weight * drawn[target]).sum(1) / weight.sum(1)
    return np.stack([1 - mean, mean], 1) if isinstance(hospitals.PATIENTS[target], hospitals.CategoryColumn) else mean


def _codes(rows: Table, name: str) -> Floats:
    """Return a column as numbers, of categories their places; NaN where it is missing."""
    column, told = hospitals.PATIENTS[name], rows.column(name)
    if isinstance(column, hospitals.CategoryColumn):
        told = pc.index_in(told, value_set=pa.array(column.categories, told.type))
    return np.asarray(pc.cast(told, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def main(
    data_dir: DataDir = DATA,
    seeds: Seeds = [0, 1, 2, 3, 4],  # noqa: B006
    tested: Annotated[int, typer.Option(help="Other patients that models are asked about.")] = 1000,
    out: Out = Path("reproductions/fedngm-hospitals"),
    results: ResultsFile = None,
) -> None:
    """Ask models of five made-up hospitals about patients that they have not seen. It takes some ten minutes."""
    hospitals_page(data_dir, seeds, tested).write(out, results)


if __name__ == "__main__":
    run_script(partial(typer.run, main))
