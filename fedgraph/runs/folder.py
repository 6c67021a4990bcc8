"""The run folder: files of a run, written so that a killed run can be resumed."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgraph.data import parse_data
from fedgraph.experiment import Experiment, file_contents, load_experiment
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.runs.reading import (
    environment_or_nothing,
    read_checkpoint,
    read_digests,
    read_environment,
    read_lines,
    read_summary,
    read_tables,
)
from fedgraph.runs.resuming import check_goes_on, code_of, differences, keys_within, notes, notes_of_code
from fedgraph.runs.summary import environment
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import (
    State,
    load_json,
    locked,
    make_folder,
    remove_unfinished,
    write_atomically,
    written,
)
from fedgraph.support.plugins import add_plugin_paths
from fedgraph.support.settings import Settings
from fedgraph.support.untrusted import EntryFormatter, check_files

_ALONE = "only one client took part: nothing was federated, and results are those of its own data"


class RunFolder:
    """Folder ``<name>-<time>`` of a run, which may be renamed and copied.

    Parameters
    ----------
    path : Path
        The folder. Use :meth:`create` for a new one and :meth:`open` to check that it is a run folder.

    Attributes
    ----------
    notes : list of str
        First notes of ``summary.json``.
    trusted : bool
        Whether modules of the folders that the run recorded are imported; see :meth:`open`.
    on_line : callable or None
        Called with each line that is added to ``metrics.jsonl``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trusted = False
        self.notes: list[str] = []
        self.on_line: Callable[[Mapping[str, Any]], None] | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @cached_property
    def run(self) -> str:
        """Name of the folder when the run began, under which nodes keep their clients' state.

        In Flower's processes, its number of the run follows: runs over the same nodes may have folders of one name.
        """
        for file in (self._environment_file, self.path / "summary.json"):
            with suppress(RunError):
                if known := load_json(file).get("run"):
                    return str(known)
        return self.name

    def name_run(self, name: str, environment: Mapping[str, Any] | None = None) -> None:
        """Write the name of a new run, under which nodes keep rows, state and models, beside its ``environment``."""
        write_atomically(self._environment_file, _json({**(environment or {}), "run": name}))
        vars(self).pop("run", None)

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        under: Path,
        plugins: Sequence[str] = (),
        node_config: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Create a new run folder with the resolved experiment and the environment.

        Parameters
        ----------
        experiment : Experiment
            The experiment.
        under : Path
            Folder in which the run folder is created.
        plugins : sequence of str, optional
            Folders whose modules the experiment may name; a resumed run needs them again.
        node_config : mapping, optional
            Node config of a simulation; a resumed run uses it again.

        Raises
        ------
        RunError
            When the folder cannot be created.
        """
        name, method = experiment.experiment.name, experiment.method.name
        named = name if name == method or name.startswith(f"{method}-") else f"{name}-{method}"
        settings = {
            "plugins": list(plugins),
            "node-config": dict(node_config or {}),
            "contents": file_contents(experiment),
        }

        def fill(folder: Path) -> None:
            write_atomically(folder / "environment.json", _json(environment() | settings))
            write_atomically(folder / "experiment.toml", experiment.as_toml().encode())

        under, stem = under.resolve(), f"{named}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            return cls(make_folder(under, stem, fill))
        except OSError as error:
            raise RunError(
                f"cannot create the run folder {under / stem}: {error}; choose another with --out or [output] dir"
            ) from None

    @classmethod
    def open(cls, path: str | Path | RunFolder, trust: bool = False) -> RunFolder:
        """Open an existing run folder, by path or by its name in the folder ``runs``.

        Parameters
        ----------
        path : str, Path or RunFolder
            The folder.
        trust : bool
            Whether the folder is one's own: code in the folders that it names is imported. A folder that somebody else
            made is data, for which only code that is installed, or in the current folder, is used.

        Raises
        ------
        RunError
            When it does not exist, is not a run folder, or has links or pipes.
        """
        folder = Path(path).resolve()
        if not folder.exists() and (Path("runs") / path / "experiment.toml").is_file():
            folder = (Path("runs") / path).resolve()
        if not folder.exists():
            raise RunError(f"no run folder {folder}: `fedgraph runs` lists those in the folder runs")
        if not (folder / "experiment.toml").is_file():
            lost = "; logs/begun-with.toml is the one that it began with: copy it there"
            known = cls(folder).begun_with.is_file()
            raise RunError(f"{folder} is not a run folder: it has no experiment.toml{lost if known else ''}")
        check_files(folder)
        opened = cls(folder)
        opened.trusted = trust or (isinstance(path, RunFolder) and path.trusted)
        return opened

    def remove_unless_begun(self) -> bool:
        """Remove the folder if the run has written no results yet, and return whether it was removed."""
        written = {str(path.relative_to(self.path)) for path in self.path.rglob("*")}
        logs = ("run.log", "begun-with.toml", "code.json")
        if written - {"experiment.toml", "environment.json", ".lock", "logs", *(f"logs/{name}" for name in logs)}:
            return False
        shutil.rmtree(self.path)
        return True

    @property
    def plugins(self) -> list[str]:
        """Folders whose modules the experiment may name."""
        return list(self._environment.get("plugins", []))

    def find_code(self) -> None:
        """Let modules of the current folder be imported, and if the run is trusted, of the folders that it recorded."""
        here = Path.cwd()
        own = [] if here.is_relative_to(self.path) and not self.trusted else [str(here)]
        add_plugin_paths([*self.environment.get("plugins", ()), *own] if self.trusted else own)

    @property
    def code(self) -> str:
        """Short digest of the user's code that the run began with; empty if there is none."""
        digests, _ = read_digests(self._code)
        return hashlib.sha256(_json(digests)).hexdigest()[:6] if digests else ""

    @property
    def _code(self) -> Path:
        return self.path / "logs" / "code.json"

    @property
    def node_config(self) -> dict[str, Any]:
        """Node config of a simulation."""
        return dict(self._environment.get("node-config", {}))

    @property
    def contents(self) -> dict[str, str]:
        """Digests of the user's own files as they were when the run began, by key; none in runs of older versions."""
        return dict(self._environment.get("contents", {}))

    @property
    def _environment_file(self) -> Path:
        return self.path / "environment.json"

    @property
    def _environment(self) -> dict[str, Any]:
        return read_environment(self._environment_file)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, machine and options of a finished run; empty, with a warning, if the file is damaged."""
        return environment_or_nothing(self._environment_file)

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint."""
        return self.path / "checkpoint.safetensors"

    def kept(self) -> State:
        """Read the checkpoint. Raises RunError for a damaged one."""
        return read_checkpoint(self.checkpoint)

    def clients_before(self) -> tuple[str, ...]:
        """Return the clients at the last checkpoint, for whom a resumed run waits; empty without a checkpoint."""
        if not self.checkpoint.exists():
            return ()
        saved = read_checkpoint(self.checkpoint)
        present = saved.get("there", {})
        return tuple(saved.get("clients", ())) or (*present.get("names", ()), *present.get("absent", ()))

    @property
    def begun_with(self) -> Path:
        """Path of the experiment that the run began with; see :mod:`fedgraph.runs.resuming`."""
        return self.path / "logs" / "begun-with.toml"

    @property
    def models(self) -> Path:
        """Path of the final models; see :mod:`fedgraph.runs.result_files`."""
        return self.path / "models.safetensors"

    @property
    def fusion(self) -> Path:
        """Path of the fusion model of a run of ``f3`` or ``f3-forecast``."""
        return self.path / "fusion.safetensors"

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "summary.json").is_file()

    @property
    def tables(self) -> dict[str, Any]:
        """The resolved experiment as unchecked tables."""
        return read_tables(self.path / "experiment.toml")

    @property
    def data(self) -> Settings:
        """The run's table ``[data]``."""
        return parse_data(self.tables["data"])

    def other_data(self, data: Settings, owner: str = "this experiment") -> dict[str, str]:
        """Return the keys in which the run's ``[data]`` differs from ``data`` of ``owner``, each with a description."""
        ours, theirs = data.as_table(), self.data.as_table()
        differing = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        return {
            key: "; ".join(
                f"{name} is {_shown(one)} in {self.path.name} and {_shown(other)} in {owner}"
                for name, (one, other) in sorted(_differing(key, theirs.get(key), ours.get(key)).items())
            )
            for key in differing
        }

    def changed_files(self, contents: Mapping[str, str]) -> list[str]:
        """Return the keys whose files had another content when this run began than in ``contents``."""
        return [key for key, content in self.contents.items() if contents.get(key, content) != content]

    def check_same_data(
        self, data: Settings, where: str, but: Sequence[str] = (), owner: str = "this experiment"
    ) -> None:
        """Raise ExperimentError, beginning with ``where``, if ``[data]`` differs in keys other than ``but``.

        ``owner`` is what ``data`` are of, for the message.
        """
        differing = {key: how for key, how in self.other_data(data, owner).items() if key not in but}
        if differing:
            raise ExperimentError(f"{where}: {self.path} has other [data]: {'; '.join(differing.values())}")

    def begin_or_go_on(self, experiment: Experiment, own: Collection[str] = (), number: int | None = None) -> None:
        """Record the experiment of a new run, or check that a run with a checkpoint goes on with the same one.

        Permitted changes are written into ``experiment.toml`` and into the notes of the run, which also name the
        user's modules that have changed. ``number`` is Flower's number of the run, see :attr:`run`. Other arguments and
        errors are those of :meth:`check_goes_on`.
        """
        if self.checkpoint.exists():
            self.notes += notes(self.check_goes_on(experiment, own))
            digests, changed = read_digests(self._code)
            changed += notes_of_code(digests, code_of(experiment))
            changed += [
                f"the file of {key} has changed since the run began: earlier rounds were run with the old one"
                for key in self.changed_files(file_contents(experiment))
            ]
            self.notes += changed
            for each in changed:
                logging.getLogger("fedgraph").warning("%s", each)
        else:
            self.begun_with.parent.mkdir(exist_ok=True)
            write_atomically(self.begun_with, experiment.as_toml().encode())
            write_atomically(self._code, _json(code_of(experiment)))
            self.name_run(self._new_name(number), self._environment)
        if load_experiment(self.path / "experiment.toml").as_dict() != experiment.as_dict():
            write_atomically(self.path / "experiment.toml", experiment.as_toml().encode())

    def _new_name(self, number: int | None) -> str:
        """Return the name of a run that begins; one that begins again keeps its name, by which nodes count releases."""
        known = re.fullmatch(rf"{re.escape(self.name)}-run-\d+", self.run)
        if known or number is None:
            return known[0] if known else self.name
        return f"{self.name}-run-{number}"

    def check_goes_on(self, experiment: Experiment, own: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Check that a run with a checkpoint goes on with the same experiment; see :mod:`fedgraph.runs.resuming`.

        ``own`` are keys of the method's table that may change. Returns old and new value of the keys with a permitted
        change; empty without a checkpoint.

        Raises
        ------
        ExperimentError
            When other keys have changed: names each, with its old and new value.
        """
        if not self.checkpoint.exists() or not self.begun_with.is_file():
            return {}
        return check_goes_on(self.path, self.begun_with, experiment, own)

    def check_unfinished(self) -> None:
        """Raise RunError if the run is finished, or its summary is damaged."""
        if self.is_finished:
            self.summary()
            raise RunError(f"{self.path} is finished; its results are in summary.json")

    def client_graph(self) -> ClientGraph:
        """Read the learned client graph of the run, or else the given one.

        Raises
        ------
        RunError
            When the run is not finished or has no graph.
        GraphError
            When the file is damaged.
        """
        if not self.is_finished:
            raise RunError(f"{self.path} is not finished: finish it to use its graph (fedgraph run --resume)")
        for name in ("learned-graph.npz", "graph.npz"):
            if (self.path / name).is_file():
                return read_graph(self.path / name)
        raise RunError(
            f"{self.path} has no client graph: use a run with a [graph], or of a method that learns one, such as "
            "sfl-star"
        )

    def write_coordinates(self, places: Mapping[str, tuple[float, float]]) -> None:
        """Write latitude and longitude of clients; nothing if ``places`` is empty."""
        if places:
            write_atomically(self.path / "coordinates.json", _json(places))

    def coordinates(self) -> dict[str, tuple[float, float]]:
        """Return latitude and longitude of the clients whose coordinates are known."""
        file = self.path / "coordinates.json"
        return {name: tuple(place) for name, place in load_json(file).items()} if file.is_file() else {}

    @contextmanager
    def locked(self, wait: float = 60.0) -> Iterator[None]:
        """Lock the folder for this process, in a ``with`` block.

        Raises
        ------
        RunError
            When another process still writes to it after ``wait`` seconds.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock", wait))
            except TimeoutError:
                raise RunError(f"another process is still running {self.path}") from None
            remove_unfinished(self.path)
            yield

    def log_to_file(self) -> logging.Handler:
        """Append the project's log messages to ``logs/run.log``; the caller removes the handler."""
        (self.path / "logs").mkdir(exist_ok=True)
        handler = logging.FileHandler(self.path / "logs" / "run.log", encoding="utf-8")
        handler.setFormatter(EntryFormatter("%(asctime)s %(levelname)s %(message)s"))
        handler.setLevel(logging.INFO)
        logger = logging.getLogger("fedgraph")
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        return handler

    @property
    def metrics(self) -> Path:
        """Path of the file with the metrics of every round, one JSON object per line."""
        return self.path / "metrics.jsonl"

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        with written(self.metrics), self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")
        if self.on_line is not None:
            self.on_line(line)

    def evaluations(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of ``metrics.jsonl`` with evaluations on a split, without that of restored models."""
        for line in self.lines():
            if line["phase"] == "evaluation" and line["split"] == split and not line.get("restored"):
                yield line

    def trainings(self) -> Iterator[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl`` with rounds of training."""
        return (line for line in self.lines() if line["phase"] == "training")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``. Raises RunError for a damaged one."""
        return read_lines(self.metrics)

    def summary(self) -> dict[str, Any]:
        """Read ``summary.json``. Raises RunError when the run is not finished, or the file is damaged."""
        return read_summary(self.path / "summary.json")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``; its presence marks the run as finished."""
        alone = [_ALONE] if summary.get("clients") == 1 else []
        notes = [*self.notes, *alone, *summary.get("notes", ())]
        write_atomically(self.path / "summary.json", _json({**summary, **({"notes": notes} if notes else {})}))


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _differing(key: str, theirs: Any, ours: Any) -> dict[str, tuple[Any, Any]]:
    """Return where two values of a key differ, of tables the keys within, with both values."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return differences(keys_within(key, theirs), keys_within(key, ours))
    return {key: (theirs, ours)}


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
