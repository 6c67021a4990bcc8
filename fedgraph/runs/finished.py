"""A run that has ended, as Python values: metrics as data frames, models as tensors, graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
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
from fedgraph.runs.reports.plot import picture_of_runs
from fedgraph.runs.reports.tables import as_html
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import file_name
from fedgraph.support.plugins import add_plugin_paths

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run:
    """A finished run, read from its run folder. What is large is read when it is asked for.

    ``metrics``, ``client_metrics``, ``clients`` and ``absences`` are data frames; ``models`` and ``global_model`` are
    state dicts, and :meth:`module` turns one into a PyTorch module; ``graph`` and ``learned_graph`` are client graphs;
    ``summary`` has the rest, as in ``summary.json``.

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
                f"{folder.path} is not finished. Leave it out, or finish it first (fedgraph run --resume FOLDER)"
            )
        self.folder = folder
        add_plugin_paths(folder.plugins)
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
        """The class of the method; None where it is a class of the user's that cannot be imported any more."""
        try:
            found: type = self.experiment.method.strategy_class
        except ExperimentError:
            return None
        return found

    @cached_property
    def experiment(self) -> Experiment:
        """The resolved experiment."""
        return load_experiment(self.path / "experiment.toml")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Mean and spread over clients of everything that was measured.

        Columns are ``round``, ``split``, ``metric``, ``mean``, ``std``, ``best5`` and ``worst5``; the latter are the
        means of the best and of the worst 5 % of the clients. Training losses have the split ``train``. What a server
        without rounds notes of its own training has one row per epoch, with the name of the phase as its split.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for line in self.folder.lines():
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

        Values of absent clients are NaN.
        """
        import pandas as pd

        parts = [
            {"round": line["round"], "split": line["split"], "metric": metric, "client": client, "value": value}
            for line in self.folder.lines()
            if line["phase"] in ("training", "evaluation")
            for metric, values in line["per_client"].items()
            for client, value in values.items()
        ]
        return pd.DataFrame(parts, columns=["round", "split", "metric", "client", "value"]).astype({"value": float})

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Results of each client at the end, with a row per client and a column per ``<split>/<metric>``.

        Where clients come in groups, the first column is ``group``.
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
        """Predictions of F3, a row per sample with its split, its probabilities, and their deviation over graphs.

        Raises
        ------
        RunError
            When the run has none.
        """
        import pandas as pd

        file = self.path / "predictions.csv"
        if not file.is_file():
            raise RunError(f"{self.path} has no predictions; only runs of f3 and results of fedgraph.predict have")
        return pd.read_csv(file, dtype={"key": str})

    @cached_property
    def forecasts(self) -> pd.DataFrame:
        """Forecasts of the test windows, or of later ones.

        Columns are ``client``, ``window``, ``time``, ``forecast``, ``reading`` and ``readings_in_window``. The last one
        counts the readings among the steps that the window is forecast from.

        Raises
        ------
        RunError
            When the run has none here: they are written where ``[evaluation] forecasts`` asks for them, by the nodes.
        """
        import pandas as pd

        # Forecasts of later windows are called by the run that the networks are from.
        run = Path(str(self.experiment.method_table.get("run", self.folder.name))).name
        files = sorted((self.path / "nodes" / "forecasts" / file_name(run)).glob("*.*"))
        if not files:
            raise RunError(
                f'{self.path} has no forecasts: run with [evaluation] forecasts = "csv" or "parquet"; nodes on other '
                "machines keep theirs"
            )
        names = {file_name(name): name for name in self.clients.index}
        read = {"csv": pd.read_csv, "parquet": pd.read_parquet}
        parts = {names[file.stem]: read[file.suffix[1:]](file) for file in files}
        return pd.concat(parts, names=["client"]).reset_index(level=0).reset_index(drop=True)

    @cached_property
    def absences(self) -> pd.DataFrame:
        """Clients without a usable reply, a row for each round and client, columns ``round, client, reason``."""
        import pandas as pd

        rows = [
            {"round": line["round"], "client": client, "reason": reason}
            for line in self.folder.lines()
            for client, reason in line.get("absent", {}).items()
        ]
        return pd.DataFrame(rows, columns=["round", "client", "reason"]).drop_duplicates(ignore_index=True)

    @cached_property
    def models(self) -> RunModels:
        """State dict of each client's model, as it was measured at the end, by client.

        It has the trained tensors and running statistics. A tensor that two layers share has one name, and counters of
        batches are left out, so that a module of your own loads it with ``load_state_dict(..., strict=False)``;
        :meth:`module` returns one that is complete.

        Raises RunError for methods that train none, and for clients whose model is not in the folder, with where it is.
        """
        return RunModels(self.folder, self.summary, self.experiment)

    @property
    def global_model(self) -> dict[str, Tensor] | None:
        """State dict of the global model, without layers that stay with clients; None for methods without one."""
        return self.models.shared

    def module(self, client: str | None = None, raw: bool = True) -> nn.Module:
        """Return a trained model as an ordinary PyTorch module in evaluation mode: the one that was measured.

        It takes values as people have them, in their own units, NaN where missing, ``[batch, *input_shape]``; features
        are in the order of ``summary["task"]["features"]``, and pixels are those of the files. It returns forecasts and
        numbers in their unit, or the probability of each class (see :class:`fedgraph.data.preprocessing.Answering`). A
        model of graphs takes ``x``, ``edge_index`` and so on, as in training.

        Parameters
        ----------
        client : str, optional
            The client whose model it is; by default the global model.
        raw : bool, default True
            False: the model alone, for inputs that are scaled already, such as to train it further. Its outputs are on
            the scale of the targets, or logits.

        Raises
        ------
        RunError
            When the run has no such model, or it, or its scales, are with the client's node: the message says how to
            get them. For the global model where each client has a scale of its own, unless ``raw`` is False.
        """
        module = self.models.module(client)
        if not raw:
            return module
        found, scales = self._predictor.scales_of(client)
        if found.form.task.level:
            return AnsweringOfGraphs(module, found.form.task).eval()
        mean, std = scales["mean"].item(), scales["std"].item()
        return Answering(module, found.form.task, found.input_scale(scales), mean, std).eval()

    def export(self, file: str | Path, client: str | None = None) -> Path:
        """Write a trained model with its scaling for other programs, ``.onnx`` or ``.safetensors``; return the path.

        It takes values in their own units, as :meth:`module` does; features, classes and units are its metadata.

        Parameters
        ----------
        file : str or Path
            The file: see :func:`fedgraph.runs.exporting.export`.
        client : str, optional
            The client whose model it is; by default the global model.

        Raises
        ------
        RunError
            As :meth:`module`, and when the file cannot be of that kind.
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
        """Predict new data by the models of the run: each client's by its own, on its own scale.

        Data have the columns that those of training had, in any order and in the same units; what is to be predicted,
        and the column of clients, may be missing.

        Parameters
        ----------
        data : data frame, array, str or Path
            A data frame of a table or of series, an array of images, or a file or folder.
        client : str, optional
            The client whose data it is, where the data do not say so.
        windows : int, optional
            Of series: the latest windows, at most so many. By default all, up to the one that forecasts the steps
            behind the last.
        target : str, optional
            Of graphical models: the feature to predict.

        Returns
        -------
        data frame
            A row for each prediction: see the guide of own data. Its ``attrs["notes"]`` say what one should know.

        Raises
        ------
        RunError
            When the run has no model for a client: the message lists its clients. For options that the method does not
            have. And for methods whose models stay with their owners, with what to do.
        DataError
            When the data lack something that was there in training, or have something that was not.
        """
        found = self.predicted(data, client, windows, target)
        found.table.attrs["notes"] = list(found.notes)
        return found.table

    def score(
        self, data: Any, client: str | None = None, windows: int | None = None, target: str | None = None
    ) -> pd.DataFrame:
        """Measure the models on new data that contain what is predicted: a row for each client, a column per metric.

        Parameters are those of :meth:`predict`.
        """
        import pandas as pd

        found = self.predicted(data, client, windows, target)
        if not found.metrics:
            raise RunError("the data have no labels to compare the predictions with")
        columns = {name: values.tolist() for name, values in found.metrics.items()}
        return pd.DataFrame(columns, index=pd.Index(found.names, name="client"))

    def predicted(
        self, data: Any, client: str | None = None, windows: int | None = None, target: str | None = None
    ) -> Predicted:
        """Predict new data and measure what is known of it, as :meth:`predict` and :meth:`score` do.

        A method whose clients are not predicted one by one does it itself: see :class:`fedgraph.algorithms.Algorithm`.
        """
        if reason := getattr(self.method_class, "no_predictions", ""):
            raise RunError(f"{self.path}: {reason}")
        by: Callable[..., Predicted] = getattr(self.method_class, "predicted", None) or Run._predicted_one_by_one
        options = {"client": client, "windows": windows, "target": target}
        given = {name: value for name, value in options.items() if value is not None}
        if foreign := given.keys() - signature(by).parameters.keys():
            raise RunError(f"{self.path}: predictions by '{self.method}' have no {', '.join(foreign)}: leave it out")
        return by(self, data, **given)

    def _predicted_one_by_one(self, data: Any, client: str | None = None, windows: int | None = None) -> Predicted:
        with TemporaryDirectory() as folder:
            place = as_file(data, Path(folder))
            try:
                return self._predictor.predict(place, client, windows)
            except DataError as error:
                if Path(folder) not in place.parents:
                    raise
                raise DataError(str(error).replace(str(place), "the data frame"), error.quoted) from None

    def read(self, place: Path, names: Sequence[str]) -> tuple[NewData, CohortData]:
        """Read and scale new data of these clients, all in this order, as :class:`Predictor` does."""
        return self._predictor.read(place, names)

    @cached_property
    def _predictor(self) -> Predictor:
        models = self.models
        kept = Preprocessing.by_client(models.kept(Preprocessing.FOLDER))
        return Predictor(models, kept, self.experiment.evaluation.horizons or ())

    @cached_property
    def graphical_model(self) -> GraphicalModel:
        """The neural graphical model of a run of ``fedngm``. Raises RunError for other methods."""
        file = self.summary.get("model_file")
        if file is None:
            raise RunError(f"{self.path} has no graphical model: '{self.method}' does not learn one")
        return GraphicalModel.load(self.path / file)

    @cached_property
    def personal_models(self) -> dict[str, GraphicalModel]:
        """By client, its neural graphical model, with its private features, as far as nodes have kept it here."""
        folder = self.path / "nodes" / "local-models" / "graphical" / self.path.name
        files = {name: folder / f"{file_name(name)}.safetensors" for name in self.clients.index}
        return {name: GraphicalModel.load(file) for name, file in files.items() if file.is_file()}

    @cached_property
    def graph(self) -> ClientGraph | None:
        """The client graph that the run was given; None without one."""
        return self._graph("graph.npz")

    @cached_property
    def learned_graph(self) -> ClientGraph | None:
        """The client graph that the method has learned; None where it learns none."""
        return self._graph("learned-graph.npz")

    def _graph(self, name: str) -> ClientGraph | None:
        return read_graph(self.path / name) if (self.path / name).is_file() else None

    def plot(self) -> Figure:
        """Draw the client graph and the learning curves, or every client at the end, as :meth:`Comparison.plot` does.

        Raises RunError when nothing was measured.
        """
        return picture_of_runs([self.folder], [self.summary])

    def __repr__(self) -> str:
        return f"<Run {self.folder.name}: {self.method}, {self.summary['clients']} clients>"

    def _repr_html_(self) -> str:
        return as_html([self.summary])


def load_run(path: str | Path) -> Run:
    """Read a finished run.

    Parameters
    ----------
    path : str or Path
        The run folder.

    Returns
    -------
    Run
        Its metrics, models and graphs.

    Raises
    ------
    RunError
        When it is no run folder, or the run is not finished.

    Examples
    --------
    >>> run = fedgraph.load_run("runs/sfl-digits-20260101-120000")  # doctest: +SKIP
    >>> run.clients["test/accuracy"].sort_values().head()           # doctest: +SKIP
    """
    if not isinstance(path, str | PathLike):
        raise RunError(f"a run is read from the path of its folder, not from {path!r}")
    return Run(RunFolder.open(path))
