"""A finished run as Python values: metrics as data frames, models as tensors, graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from inspect import signature
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedgraph.data import CohortData, Preprocessing, as_file
from fedgraph.data.preprocessing import Answering, AnsweringOfGraphs, NewData, Predicted
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.graphical import GraphicalModel
from fedgraph.runs.exporting import export
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.models import RunModels
from fedgraph.runs.predicting import Predictor
from fedgraph.runs.reading import how_to_write_again
from fedgraph.runs.reports.plot import picture_of_runs
from fedgraph.runs.reports.tables import as_html
from fedgraph.support.csv_text import text_of_cell
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import file_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run:
    """A finished run, read from its run folder. Large files are read on first use.

    ``metrics``, ``client_metrics``, ``clients`` and ``absences`` are data frames; ``models`` and ``global_model`` are
    state dicts, and :meth:`module` turns one into a PyTorch module; ``graph`` and ``learned_graph`` are client graphs;
    ``summary`` is the content of ``summary.json``.

    Parameters
    ----------
    folder : RunFolder
        The run folder.

    Raises
    ------
    RunError
        When the run is not finished, or its summary is damaged.
    """

    def __init__(self, folder: RunFolder) -> None:
        if not folder.is_finished:
            raise RunError(
                f"{folder.path} is not finished: leave it out, or finish it first (fedgraph run --resume FOLDER)"
            )
        self.folder = folder
        folder.find_code()
        self.summary: dict[str, Any] = folder.summary()

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.summary["method"])

    @cached_property
    def method_class(self) -> type | None:
        """The class of the method; None for a user's class that can no longer be imported."""
        try:
            strategy: type = self.experiment.method.strategy_class
        except ExperimentError:
            return None
        return strategy

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return load_experiment(self.path / "experiment.toml")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Mean and spread over clients of every metric.

        Columns are ``round``, ``split``, ``metric``, ``mean``, ``std``, ``best5`` and ``worst5``; the last two are the
        means of the best and of the worst 5 % of the clients. Training losses have the split ``train``. Training at
        the server without rounds has a row per epoch, with the name of its phase as split. Final models that are not
        those of the last round, such as the best ones, have their results in :attr:`clients` alone.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for line in self.folder.lines():
            if line.get("restored"):
                continue
            if line["phase"] in ("training", "evaluation"):
                head = {"round": line["round"], "split": line["split"]}
                rows += [{**head, "metric": metric, **values} for metric, values in line["metrics"].items()]
            else:
                head = {"round": line["round"], "split": line["phase"]}
                numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
                rows += [{**head, "metric": key, "mean": value} for key, value in numbers.items() if key != "round"]
        columns = ["round", "split", "metric", "mean", "std", "best5", "worst5"]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def client_metrics(self) -> pd.DataFrame:
        """Every measurement of every client, with columns ``round``, ``split``, ``metric``, ``client`` and ``value``.

        Values of absent clients are NaN. Rounds are those of :attr:`metrics`.
        """
        import pandas as pd

        parts = [
            {"round": line["round"], "split": line["split"], "metric": metric, "client": client, "value": value}
            for line in self.folder.lines()
            if line["phase"] in ("training", "evaluation") and not line.get("restored")
            for metric, values in line["per_client"].items()
            for client, value in values.items()
        ]
        return pd.DataFrame(parts, columns=["round", "split", "metric", "client", "value"]).astype({"value": float})

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Final metrics of each client, one row per client, a column per ``<split>/<metric>``.

        If clients have groups, the first column is ``group``.
        """
        import pandas as pd

        columns = {
            f"{split}/{metric}": values
            for split, metrics in self.summary["per_client"].items()
            for metric, values in metrics.items()
        }
        frame = pd.DataFrame(columns).astype(float)
        frame.index.name = "client"
        if "groups" in self.summary:
            frame.insert(0, "group", pd.Series(self.summary["groups"]))
        return frame

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """Predictions of F3, one row per sample with split, probabilities, and their standard deviation over graphs.

        Raises
        ------
        RunError
            When the run has none, or the file is damaged.
        """
        import pandas as pd

        file = self.path / "predictions.csv"
        if not file.is_file():
            raise RunError(f"{self.path} has no predictions: only runs of f3 and of fedgraph.predict have them")
        table = self._read(lambda file: pd.read_csv(file, dtype={"key": str}), file)
        return table.rename(columns=text_of_cell).map(text_of_cell)

    @cached_property
    def forecasts(self) -> pd.DataFrame:
        """Forecasts of the test windows, or of later ones.

        Columns are ``client``, ``window``, ``time``, ``forecast``, ``reading`` and ``readings_in_window``. The last one
        counts the readings among the input steps of the window.

        Raises
        ------
        RunError
            When the folder has none: nodes write them if ``[evaluation] forecasts`` is set.
        """
        import pandas as pd

        # Under the name of this run, or of that whose networks made them.
        files = sorted((self.path / "nodes" / "forecasts").glob("*/*.*"))
        if not files:
            raise RunError(
                f'{self.path} has no forecasts: run with [evaluation] forecasts = "csv" or "parquet"; nodes on other '
                "machines keep theirs"
            )
        names = {file_name(name): name for name in self.clients.index}
        read = {"csv": pd.read_csv, "parquet": partial(pd.read_parquet, page_checksum_verification=True)}
        parts = {names[file.stem]: self._read(read[file.suffix[1:]], file) for file in files}
        return pd.concat(parts, names=["client"]).reset_index(level=0).reset_index(drop=True)

    def _read(self, read: Callable[[Path], pd.DataFrame], file: Path) -> pd.DataFrame:
        """Read a table that the run has written. Raises RunError for a damaged one."""
        try:
            return read(file)
        except (OSError, ValueError) as error:  # errors of pandas are ValueErrors
            raise RunError(f"cannot read {file} ({error}): {how_to_write_again(self.path)}") from None

    @cached_property
    def absences(self) -> pd.DataFrame:
        """Clients without a usable reply, one row per round and client, with columns ``round, client, reason``."""
        import pandas as pd

        rows = [
            {"round": line["round"], "client": client, "reason": reason}
            for line in self.folder.lines()
            for client, reason in line.get("absent", {}).items()
        ]
        return pd.DataFrame(rows, columns=["round", "client", "reason"]).drop_duplicates(ignore_index=True)

    @cached_property
    def models(self) -> RunModels:
        """State dict of each client's final model, by client.

        It has the trained tensors and running statistics. A tensor shared by two layers has one name, and batch
        counters are left out: load it with ``load_state_dict(..., strict=False)``, or use :meth:`module`.

        Raises RunError for methods without models and for clients whose model is not in the folder, saying where it is.
        """
        return RunModels(self.folder, self.summary, self.experiment)

    @property
    def global_model(self) -> dict[str, Tensor] | None:
        """State dict of the global model, without layers that stay with clients; None if the method has none."""
        return self.models.shared

    def module(self, client: str | None = None, raw: bool = True) -> nn.Module:
        """Return a final model as a PyTorch module in evaluation mode.

        It takes values in their original units, NaN where missing, ``[batch, *input_shape]``; features are in the order
        of ``summary["task"]["features"]``, and pixels are as in the files. It returns forecasts and numbers in their
        unit, or the probability of each class (see :class:`fedgraph.data.preprocessing.Answering`). A model of graphs
        takes ``x``, ``edge_index`` and so on, as in training.

        Parameters
        ----------
        client : str, optional
            The client whose model to return; by default the global model.
        raw : bool, default True
            False: the model without scaling, for scaled inputs, for example to train it further. Its outputs are
            scaled targets, or logits.

        Raises
        ------
        RunError
            When the run has no such model; when model or scales are at the client's node, saying how to get them; and
            for the global model if each client has its own scale, unless ``raw`` is False.
        """
        module = self.models.module(client)
        if not raw:
            return module
        preprocessing, scales = self._predictor.scales_of(client)
        task = preprocessing.form.task
        if task.level:
            return AnsweringOfGraphs(module, task).eval()
        mean, std = scales["mean"].item(), scales["std"].item()
        return Answering(module, task, preprocessing.input_scale(scales), mean, std).eval()

    def export(self, file: str | Path, client: str | None = None) -> Path:
        """Write a final model with its scaling as ``.onnx`` or ``.safetensors``, and return the path.

        It takes values in their original units, as :meth:`module` does; its metadata contain features, classes, units.

        Parameters
        ----------
        file : str or Path
            The file; see :func:`fedgraph.runs.exporting.export`.
        client : str, optional
            The client whose model to write; by default the global model.

        Raises
        ------
        RunError
            As :meth:`module`, and when the model cannot be written in that format.
        """
        module = self.module(client)
        assert isinstance(module, Answering | AnsweringOfGraphs)
        place = Path(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        export(module, place, {"run": self.folder.name, "method": self.method, "client": client or "all"})
        return place

    def predict(
        self, data: Any, client: str | None = None, windows: int | None = None, target: str | None = None
    ) -> pd.DataFrame:
        """Predict new data with the models of the run: each client's data with its own model and scale.

        Data have the columns of the training data, in any order and the same units; the target and the column of
        clients may be missing.

        Parameters
        ----------
        data : data frame, array, str or Path
            A data frame of a table or of series, a list of dicts (a row each), an array, or a file or folder. An
            array of a table has the columns that the models need, in the order of the training data, without label and
            client; one of images is as in training.
        client : str, optional
            The client of the data, unless the data name it.
        windows : int, optional
            For series: maximum number of windows, the latest. By default all, including the one whose forecast lies
            after the last step.
        target : str, optional
            For graphical models: the feature to predict.

        Returns
        -------
        data frame
            A row per prediction; see the guide to your own data. Predictions for the rows of a data frame of pandas
            have its index. ``attrs["notes"]`` has remarks on them.

        Raises
        ------
        RunError
            For a client without a model (listing the clients), for options that the method does not have, and for
            methods whose models stay with their owners.
        DataError
            When columns or values differ from those of training.
        """
        prediction = self.predicted(data, client, windows, target)
        table = prediction.table
        if hasattr(data, "iloc") and "row" in table:
            table = table.set_index(data.index[table["row"] - 1])
        table.attrs["notes"] = list(prediction.notes)
        return table

    def score(
        self, data: Any, client: str | None = None, windows: int | None = None, target: str | None = None
    ) -> pd.DataFrame:
        """Evaluate the models on new data with labels: a row per client, a column per metric.

        Parameters are those of :meth:`predict`.
        """
        import pandas as pd

        prediction = self.predicted(data, client, windows, target)
        if not prediction.metrics:
            raise RunError("the data have no labels to compare the predictions with")
        columns = {name: values.tolist() for name, values in prediction.metrics.items()}
        return pd.DataFrame(columns, index=pd.Index(prediction.names, name="client"))

    def predicted(
        self, data: Any, client: str | None = None, windows: int | None = None, target: str | None = None
    ) -> Predicted:
        """Predict new data, and compute metrics if it has labels; see :meth:`predict` and :meth:`score`.

        A method may override this with its own ``predicted``: see :class:`fedgraph.algorithms.Algorithm`.
        """
        if reason := getattr(self.method_class, "no_predictions", ""):
            raise RunError(f"{self.path}: {reason}")
        by: Callable[..., Predicted] = getattr(self.method_class, "predicted", None) or Run._predicted_one_by_one
        # Clients by number have names of digits.
        options = {"client": None if client is None else str(client), "windows": windows, "target": target}
        arguments = {name: value for name, value in options.items() if value is not None}
        if unknown := arguments.keys() - signature(by).parameters.keys():
            raise RunError(f"{self.path}: predictions of '{self.method}' have no option {', '.join(unknown)}")
        return by(self, data, **arguments)

    def _predicted_one_by_one(self, data: Any, client: str | None = None, windows: int | None = None) -> Predicted:
        with TemporaryDirectory() as folder:
            place = as_file(data, Path(folder))
            try:
                return self._predictor.predict(place, client, windows)
            except DataError as error:
                if Path(folder) not in place.parents:
                    raise
                given = "the data frame" if place.suffix == ".parquet" else "the data"
                raise DataError(str(error).replace(str(place), given), error.quoted) from None

    def read(self, place: Path, names: Sequence[str]) -> tuple[NewData, CohortData]:
        """Read and scale new data of these clients, in this order; see :meth:`Predictor.read`."""
        return self._predictor.read(place, names)

    @cached_property
    def _predictor(self) -> Predictor:
        models = self.models
        preprocessing = Preprocessing.by_client(models.kept(Preprocessing.FOLDER))
        return Predictor(models, preprocessing, self.experiment.evaluation.horizons or ())

    @cached_property
    def graphical_model(self) -> GraphicalModel:
        """The neural graphical model of a run of ``fedngm``. Raises RunError for other methods."""
        file = self.summary.get("model_file")
        if file is None:
            raise RunError(f"{self.path} has no graphical model: '{self.method}' does not learn one")
        return GraphicalModel.load(self.path / file)

    @cached_property
    def personal_models(self) -> dict[str, GraphicalModel]:
        """Neural graphical models with private features, by client, as far as they are in the run folder."""
        folder = self.path / "nodes" / "local-models" / "graphical" / file_name(self.folder.run)
        files = {name: folder / f"{file_name(name)}.safetensors" for name in self.clients.index}
        return {name: GraphicalModel.load(file) for name, file in files.items() if file.is_file()}

    @cached_property
    def graph(self) -> ClientGraph | None:
        """The client graph that the run was given; None without one."""
        return self._graph("graph.npz")

    @cached_property
    def learned_graph(self) -> ClientGraph | None:
        """The client graph that the method has learned; None without one."""
        return self._graph("learned-graph.npz")

    def _graph(self, name: str) -> ClientGraph | None:
        return read_graph(self.path / name) if (self.path / name).is_file() else None

    def plot(self) -> Figure:
        """Draw the run as :meth:`Comparison.plot` does. Raises RunError when nothing was measured."""
        return picture_of_runs([self.folder], [self.summary])

    def __repr__(self) -> str:
        return f"<Run {self.folder.name}: {self.method}, {self.summary['clients']} clients>"

    def _repr_html_(self) -> str:
        return as_html([self.summary])


def load_run(path: str | Path, trust: bool = False) -> Run:
    """Read a finished run from the path of its run folder.

    ``trust`` is for one's own runs, see :meth:`RunFolder.open`.

    Raises
    ------
    RunError
        When it is not a run folder, or the run is not finished.

    Examples
    --------
    >>> run = fedgraph.load_run("runs/sfl-digits-20260101-120000")  # doctest: +SKIP
    >>> run.clients["test/accuracy"].sort_values().head()           # doctest: +SKIP
    """
    if not isinstance(path, str | PathLike):
        raise RunError(f"load_run expects the path of a run folder, got {path!r}")
    return Run(RunFolder.open(path, trust))
