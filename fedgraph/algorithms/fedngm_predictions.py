"""Predictions of a feature of new rows with missing values by the graphical models of a run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedgraph.data import UNNAMED, as_file
from fedgraph.data.columns import FileSettings, Floats, Table, read_column
from fedgraph.data.encoding import to_values
from fedgraph.data.preprocessing import Predicted
from fedgraph.data.schema import SchemaSettings
from fedgraph.data.tables import rows_by_client
from fedgraph.graphical import GraphicalModel
from fedgraph.graphical.scores import score_targets
from fedgraph.support.errors import RunError, quoted

if TYPE_CHECKING:
    import pandas as pd


def predicted_feature(run: Any, data: Any, client: str | None = None, target: str | None = None) -> Predicted:
    """Predict a feature of rows, by each client's own model if available.

    Missing cells or columns are marginalised. Raises RunError without a target, and for an unknown target or client.

    Parameters
    ----------
    run : fedgraph.Run
        A run of ``fedngm``.
    data : data frame, str or Path
        The rows.
    client : str, optional
        The client of the rows, unless they contain it; by default the global model predicts them.
    target : str, optional
        The feature.

    Returns
    -------
    Predicted
        Its table has ``client`` if known, ``row`` from 1, ``predicted``, and the probability of each category;
        its metrics are the measures of error, if the target is known.

    Raises
    ------
    RunError
        Without a target, for one that a client's model does not know, and for a client that the run does not know.
    """
    import pandas as pd

    if target is None:
        names = ", ".join(run.graphical_model.encoding.schema.names)
        raise RunError(f"a graphical model predicts any feature: name the target, one of {names}")
    clients = list(run.clients.index)
    if client is not None and client not in clients:
        raise RunError(f"{run.path} has no client '{client}'; its clients: {quoted(clients, 10)}")
    table = _read(run, data)
    column = run.experiment.data.as_table().get("client-column")
    is_named = client is not None or column in table.names
    parts: list[pd.DataFrame] = []
    errors: dict[str, dict[str, float]] = {}
    by_all = []
    for name, rows in rows_by_client(table, column, client, UNNAMED).items():
        model = run.personal_models.get(name)
        if model is None:
            by_all += [name] if is_named else []
            model = run.graphical_model
        if target not in model.encoding.schema.names:
            whose = "the global model" if name in by_all or not is_named else f"the model of '{name}'"
            raise RunError(f"{whose} knows no '{target}', but {', '.join(model.encoding.schema.names)}")
        found, own = _predicted(model, table.part(rows), target)
        parts.append(found.assign(row=rows + 1, **({"client": name} if is_named else {})))
        errors[name] = own
    first = [name for name in ("client", "row") if name in parts[0].columns]
    every = pd.concat(parts, ignore_index=True).sort_values("row", ignore_index=True)
    measures = dict.fromkeys(measure for own in errors.values() for measure in own)
    metrics = {
        measure: torch.tensor([own.get(measure, np.nan) for own in errors.values()], dtype=torch.float64)
        for measure in measures
    }
    note = f"predicted by the global model, as models of their own are not here: {quoted(by_all, 10)}"
    table = every[[*first, *every.columns.drop(first)]]
    return Predicted(table, metrics, tuple(errors), (note,) if by_all else ())


def _read(run: Any, data: Any) -> Table:
    """Read rows as the rows of training were read, with the same marks and codes of missing values."""
    settings = run.experiment.data
    file = settings if isinstance(settings, FileSettings) else FileSettings()
    with TemporaryDirectory() as folder:
        table = file.read(as_file(data, Path(folder)), run.graphical_model.encoding.schema.names)
    known: SchemaSettings = getattr(settings, "table_schema", SchemaSettings())
    columns = dict(table.columns)
    for name in (known.missing_codes.keys() & columns.keys()) - known.embeddings:
        is_missing = pa.array(read_column(table, name, known.missing_codes[name]).codes < 0)
        columns[name] = pc.if_else(is_missing, pa.scalar(None, columns[name].type), columns[name])
    return table.with_columns(columns)


def _predicted(model: GraphicalModel, table: Table, target: str) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return predictions of a target, and their errors if it is known."""
    import pandas as pd

    schema, feature = model.encoding.schema, model.encoding.schema[target]
    columns: dict[str, Any] = {"predicted": list(model.predict(table, target))}
    shares: Floats | None = None
    if not feature.is_scaled:
        shares = model.predict_proba(table, target)
        columns |= {f"probability {name}": shares[:, place] for place, name in enumerate(feature.categories)}
    errors: dict[str, float] = {}
    if target in table.names and feature.kind != "embedding" and (shares is not None or not feature.categories):
        guessed = np.array(columns["predicted"]) if shares is None else shares
        isolated = schema.select([target])
        truth = to_values(table, isolated, settings=SchemaSettings(unknown="missing", least_rows=1))
        found = score_targets(isolated, truth, {target: guessed})[target]
        errors = {f"{target}-{name}": value for name, value in found.items() if name != "rows" and found["rows"]}
    return pd.DataFrame(columns), errors
