"""Running of experiments, in this process or on Flower, from Python and for the command line."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fedgraph.algorithms.phases import has_phases
from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import forget_data
from fedgraph.experiment import Experiment, Overrides, load_experiment, plugin_folders, yardsticks
from fedgraph.federation.grids import LocalGrid, run_on_flower
from fedgraph.runs import Callback, Comparison, Run, RunFolder, named_code
from fedgraph.runs.reports import LiveDisplay, live_display
from fedgraph.runs.reports.page import leave_report
from fedgraph.starting.first_look import look_at
from fedgraph.starting.given import in_words, named_by_key
from fedgraph.starting.node_config import SITES, node_configs, node_options, site_options
from fedgraph.strategies.app import serve
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.errors import FULL_ERRORS, DiskError, ExperimentError, FedgraphError, RunError
from fedgraph.support.files import load_state
from fedgraph.support.plugins import add_plugin_paths, dotted_path, is_importable
from fedgraph.support.settings import parse
from fedgraph.support.status import STATUS_FILE, StatusFile, show, warnings_on
from fedgraph.support.untrusted import indented

GRIDS = ("local", "flower")


@named_by_key()
def run(
    experiment: str | Path | Mapping[str, Any],
    *,
    set: str | Iterable[str] | Mapping[str, Any] = (),
    method: str | None = None,
    strategy: type | str | None = None,
    client: type | str | None = None,
    grid: str = "local",
    nodes: int = 2,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    models: Mapping[str, str | Path] | None = None,
    node_config: Mapping[str, Any] | None = None,
    sites: Mapping[str, Any] | None = None,
) -> Run:
    """Run an experiment to its end.

    Returns the finished run. Its folder has a report, ``report.html``. Raises ExperimentError when something in the
    experiment is unknown or does not fit, before anything is run. Raises RunError when the run does not finish; the
    message names the folder to continue with. Errors before anything is computed, such as a missing file, leave no
    folder.

    Parameters
    ----------
    experiment : str, Path or mapping
        Experiment file, by path or, for those that come along, by name such as ``"sfl/digits.toml"``; or its tables.
        These have data frames and graphs (of NetworkX, PyTorch Geometric or :class:`fedgraph.ClientGraph`) where a file
        has paths, and classes where it has dotted paths: ``{"data": {"set": Wards}, "model": {"name": Net}}``.
    set : mapping, str or iterable of str, optional
        Keys to override: ``{"train.learning-rate": 0.05}``, ``"train.learning-rate=0.05"`` or several of these; with
        data frames, graphs and classes too.
    method : str, optional
        Built-in method instead of the one in the experiment.
    strategy : type or str, optional
        Strategy of your own in its place, as a class or by dotted path ``"package.module:Class"``.
    client : type or str, optional
        Client class, as a class or by dotted path; by default that of the strategy.
    grid : {"local", "flower"}, default "local"
        In this process, or through ``flwr run`` with nodes on Ray, which cannot find the classes of a notebook.
    nodes : int, default 2
        Nodes among which the clients are divided.
    data_dir : str or Path, optional
        Data folder; by default that of ``FEDGRAPH_DATA``.
    out : str or Path, optional
        Folder for the run folder; by default ``[output] dir``.
    progress : bool, default True
        Show a progress bar, in a terminal or a notebook.
    models : mapping of str to str or Path, optional
        Models that clients have already, by client, as nodes are given them (node config ``models``); with ``sites``,
        by site.
    node_config : mapping, optional
        Further keys of the node config of every node; with ``sites``, under the name of a site those of that one.
    sites : mapping of str to str, Path or data frame, optional
        A rehearsal of a deployment, in this process: a node for each site, with data of its own instead of
        ``[data] path``. A site is the client of its name, unless its data name clients.

    Examples
    --------
    >>> run = fedgraph.run("sfl/digits.toml", set={"train.learning-rate": 0.05})  # doctest: +SKIP
    >>> run.clients["test/accuracy"].mean()                                       # doctest: +SKIP
    """
    if method is not None and strategy is not None:
        raise ExperimentError("give a method or a strategy, not both")
    node_options = _NodeOptions(node_config, models, sites)
    folders = _new_folders(experiment, set, [strategy or method], client, grid, out, node_options)
    return _run_all(folders, grid, nodes, data_dir, progress)[0]


@named_by_key()
def run_methods(
    experiment: str | Path | Mapping[str, Any],
    methods: Sequence[str | type | None],
    *,
    set: str | Iterable[str] | Mapping[str, Any] = (),
    grid: str = "local",
    nodes: int = 2,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    models: Mapping[str, str | Path] | None = None,
    node_config: Mapping[str, Any] | None = None,
    sites: Mapping[str, Any] | None = None,
) -> Comparison:
    """Run an experiment with several methods sequentially, and compare them.

    Raises ExperimentError when something in one of the experiments is unknown or does not
    fit, before anything is run. Raises RunError when a run does not finish.

    Parameters
    ----------
    experiment : str, Path or mapping
        As for :func:`run`, as are the others.
    methods : sequence of str, type or None
        Built-in methods by name, strategies by class or dotted path; None stands for the method of the experiment.

    Examples
    --------
    >>> fedgraph.run_methods("sfl/digits.toml", ["sfl", "fedavg", "local"]).metrics  # doctest: +SKIP
    """
    node_options = _NodeOptions(node_config, models, sites)
    methods = [methods] if isinstance(methods, str) else methods
    folders = _new_folders(experiment, set, methods, None, grid, out, node_options)
    return Comparison(_run_all(folders, grid, nodes, data_dir, progress))


@named_by_key()
def resume(
    path: str | Path | RunFolder,
    *,
    grid: str = "local",
    nodes: int = 2,
    data_dir: str | Path | None = None,
    progress: bool = True,
    trust: bool = False,
) -> Run:
    """Continue a stopped run, with the same results as without the stop.

    Raises ExperimentError when its ``experiment.toml`` was changed since something was
    trained, in a key that must not change; see :mod:`fedgraph.runs.resuming`. Raises RunError when it is not a run
    folder, the run is finished already, or it does not finish now.

    Parameters
    ----------
    path : str, Path or RunFolder
        The run folder.
    grid, nodes, data_dir, progress
        As for :func:`run`.
    trust : bool, default False
        Whether code in the folders that the run names is imported, see :meth:`fedgraph.runs.RunFolder.open`.
    """
    check_grid(grid)
    folder = RunFolder.open(path, trust)
    folder.check_unfinished()
    folder.find_code()
    experiment = load_experiment(folder.path / "experiment.toml")
    folder.check_goes_on(experiment, ChosenMethod(experiment).may_change)
    return _run_all([folder], grid, nodes, data_dir, progress, new=False)[0]


class _NodeOptions(NamedTuple):
    """The options of nodes in addition to the experiment, as the caller gave them."""

    node_config: Mapping[str, Any] | None
    models: Mapping[str, str | Path] | None
    sites: Mapping[str, Any] | None

    def of(self, sites: Mapping[str, Any], experiment: Experiment, grid: str) -> dict[str, Any]:
        """Return it for the nodes of a run, with ``sites`` as paths."""
        if not sites:
            return node_options(self.node_config, self.models)
        check_sites_grid(grid)
        return site_options(sites, self.node_config, self.models, experiment.data)


def check_grid(grid: str) -> None:
    """Raise ExperimentError for an unknown grid."""
    if grid not in GRIDS:
        raise ExperimentError(f"the grid is {' or '.join(map(repr, GRIDS))}, not '{grid}'")


def check_sites_grid(grid: str) -> None:
    """Raise ExperimentError for a grid other than this process, where alone sites are rehearsed."""
    if grid != "local":
        raise ExperimentError(f"sites are rehearsed in this process, and not on the grid '{grid}': leave one out")


def _new_folders(
    experiment: str | Path | Mapping[str, Any],
    overrides: Overrides,
    methods: Sequence[type | str | None],
    client: type | str | None,
    grid: str,
    out: str | Path | None,
    node_options: _NodeOptions,
) -> list[RunFolder]:
    """Create a run folder for each method, after checking all experiments."""
    check_grid(grid)
    experiment, keys, sites = in_words(experiment, overrides, node_options.sites or {}, out)
    plugins = plugin_folders(experiment)
    add_plugin_paths(plugins)
    paths = [None if method is None else dotted_path(method) for method in methods]
    client_path = None if client is None else dotted_path(client)
    experiments = [load_experiment(experiment, keys, path, client_path) for path in paths]
    experiments += yardsticks(experiments[0], ChosenMethod(experiments[0]).uses_graph)
    if out is not None:
        experiments = [replace(each, output=each.output.model_copy(update={"dir": str(out)})) for each in experiments]
    for each in experiments:
        method = ChosenMethod(each)
        named = (*named_code(each), method.client)
        for path in named if grid == "flower" else ():
            if path is not None and not is_importable(path):
                raise ExperimentError(
                    f"{path} is defined in this process alone, where nodes of `flwr run` cannot find it: move it to a "
                    'module, or use the grid "local"'
                )
    node_config = node_options.of(sites, experiments[0], grid)
    return [RunFolder.create(each, Path(each.output.dir), plugins, node_config) for each in experiments]


def _run_all(
    folders: Sequence[RunFolder],
    grid: str,
    nodes: int,
    data_dir: str | Path | None,
    progress: bool,
    new: bool = True,
) -> list[Run]:
    """Run the experiments of run folders, and write a report for each, and a common one to the first.

    An error or Ctrl-C ends all of them, with notes on finished runs. Folders of ``new`` runs without any results are
    then removed.
    """
    finished: list[Run] = []
    if new and len(folders) > 1 and grid == "local":
        _look_at_all(folders, nodes, data_dir)
    for folder in folders:
        try:
            run_one(folder, grid, nodes, None if data_dir is None else Path(data_dir), Console(quiet=not progress))
        except (RunError, KeyboardInterrupt) as error:
            removed = [each for each in folders if new and each.remove_unless_begun()]
            ended = error if folder not in removed or error.__cause__ is None else error.__cause__
            for run in finished:
                ended.add_note(f"Finished: {run.folder.path}")
            if isinstance(error, KeyboardInterrupt) and folder not in removed:
                _, command = _named_code(folder)
                ended.add_note(f"Go on with: {command or f'fedgraph run --resume {folder.path}'}")
            if ended is error:
                raise
            raise ended from None
        finished.append(Run(folder))
        leave_report(finished[-1:])
    if len(finished) > 1:
        leave_report(finished)
    return finished


def _look_at_all(folders: Sequence[RunFolder], nodes: int, data_dir: str | Path | None) -> None:
    """Raise the error that would end one of several runs before any starts, and remove their folders."""
    place = str(Path(data_dir).resolve()) if data_dir else os.environ.get("FEDGRAPH_DATA", "")
    node = {"full-errors": "1", **({"data-dir": place} if place else {})}
    try:
        look_at(folders, node_configs(folders[0].node_config, nodes, node), {"data-dir": place})
    except FedgraphError:
        for folder in folders:
            folder.remove_unless_begun()
        raise


def run_one(
    folder: RunFolder,
    grid: str,
    nodes: int,
    data_dir: Path | None,
    console: Console,
    label: str | None = None,
    model_dir: Path | None = None,
    advice: str | None = None,
    listeners: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Run or continue the experiment of a run folder.

    Returns the content of ``summary.json``. Raises RunError when the run does not finish; the message names the folder
    to continue with.

    Parameters
    ----------
    grid : in this process, or through ``flwr run`` with nodes on Ray.
    nodes : number of nodes among which clients are divided.
    data_dir : data folder; by default that of ``FEDGRAPH_DATA``.
    console : terminal with the progress bar.
    label : label of the progress bar; by default the name of the method.
    model_dir : folder in which nodes keep the frozen models of their clients; by default with their state, in the run
        folder.
    advice : how to continue a run that failed, in its error message; by default with ``--resume``, and what first.
    listeners : callbacks that follow the run, which must then be in this process.
    """
    try:
        _run_or_go_on(folder, grid, nodes, data_dir, console, label, model_dir, listeners)
    except FedgraphError as error:
        if isinstance(error, DiskError):
            advice = advice or "then go on with --resume"
        raise RunError(f"{error}\n{_place_and_advice(folder, advice)}") from error
    except Exception as error:
        # Of custom code, for which the traceback is helpful.
        error.add_note(_place_and_advice(folder, advice))
        raise
    return folder.summary()


def _place_and_advice(folder: RunFolder, advice: str | None) -> str:
    """Describe the folder of a failed run, and how to resume it."""
    how = "" if folder.is_finished else f"; {advice or _how_to_go_on(folder)}"
    return f"Run folder: {folder.path}{how}"


def _can_be_read(checkpoint: Path) -> bool:
    try:
        load_state(checkpoint)
    except RunError:
        return False
    return True


def _how_to_go_on(folder: RunFolder) -> str:
    """Describe how to resume a failed run with the same node options."""
    code, command = _named_code(folder)
    go_on = f"go on with {command or '--resume'}"
    if folder.checkpoint.exists():
        if not _can_be_read(folder.checkpoint):
            return go_on
        return (
            f"{go_on}, from its last checkpoint: [experiment] rounds, on-missing, min-clients, timeout and "
            "[output] may change in its experiment.toml; for another method, data, model or training start a new run"
        )
    node_options = folder.node_config
    others = [*code, *(["what is wrong with a file of --model"] if "models" in node_options else [])]
    once = f"once {', or '.join(['its experiment.toml', *others])}{',' * bool(others)} is mended, {go_on}"
    if not node_options:
        return once
    options = " and ".join(
        option
        for option, present in (
            ("--site", SITES in node_options),
            ("--model", "models" in node_options),
            ("--node-config", node_options.keys() - {"models", SITES}),
        )
        if present
    )
    return f"{once}; to change what {options} says, run again"


def _named_code(folder: RunFolder) -> tuple[list[str], str]:
    """Return the custom code of a run's experiment, and how to resume in Python if a command cannot find it."""
    try:
        named = named_code(load_experiment(folder.path / "experiment.toml"))
        found = all(map(is_importable, named))
    except Exception:  # whatever the code does when it is imported: the error of the run is what counts
        return [], ""
    return named, "" if found else f'fedgraph.resume("{folder.path}"), where the class is defined'


def _run_or_go_on(
    folder: RunFolder,
    grid: str,
    nodes: int,
    data_dir: Path | None,
    console: Console,
    label: str | None,
    model_dir: Path | None,
    listeners: Sequence[Callback],
) -> None:
    experiment = load_experiment(folder.path / "experiment.toml")
    display = live_display(console, label or experiment.method.name, _total(experiment))
    run_config = {
        "experiment": str(folder.path / "experiment.toml"),
        "set": shlex.quote(f"output.resume={folder.path}"),
        "data-dir": str(data_dir.resolve()) if data_dir else os.environ.get("FEDGRAPH_DATA", ""),
    }
    # All nodes are on this machine: errors need not be hidden.
    places = {"FEDGRAPH_STATE": str(folder.path / "nodes"), FULL_ERRORS: "1"}
    if model_dir is not None:
        places["FEDGRAPH_MODELS"] = str(model_dir.resolve())
    if run_config["data-dir"]:
        places["FEDGRAPH_DATA"] = run_config["data-dir"]
    node_options = folder.node_config
    if grid == "flower":
        log = folder.path / "logs" / "flower.log"
        log.parent.mkdir(exist_ok=True)
        if node_options:
            places["FEDGRAPH_NODE_CONFIG"] = json.dumps(node_options)
        places[STATUS_FILE] = str(folder.path / "logs" / "nodes.jsonl")
        with display:
            run_on_flower(run_config, nodes, log, places, on_wait=_follower(folder, display, console))
        if not folder.is_finished:
            raise RunError(f"the run did not finish; the end of {log}:\n{_tail(log)}")
    else:
        with warnings_on(console):
            _run_in_process(run_config, nodes, places, node_options, display, listeners)


def _total(experiment: Experiment) -> int | None:
    """Return the number of rounds, or of epochs of a strategy without rounds, or None if unknown."""
    strategy, rounds = experiment.method.strategy_class, experiment.experiment.rounds
    if not has_phases(strategy):
        return rounds
    settings = parse(strategy.settings_type, experiment.method_table, f"[{experiment.method.name}]")
    return strategy.steps_of(settings, rounds)


def _run_in_process(
    run_config: dict[str, str],
    nodes: int,
    places: Mapping[str, str],
    node_options: Mapping[str, Any],
    display: LiveDisplay,
    listeners: Sequence[Callback],
) -> None:
    keys = {
        "FEDGRAPH_STATE": "state-dir",
        "FEDGRAPH_MODELS": "model-dir",
        "FEDGRAPH_DATA": "data-dir",
        FULL_ERRORS: "full-errors",
    }
    configs = node_configs(node_options, nodes, {keys[name]: value for name, value in places.items()})
    forget_data()
    local = LocalGrid(client_app, configs, run_config)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with display:
        serve(local, run_config, [display, *listeners])


def _follower(folder: RunFolder, display: LiveDisplay, console: Console) -> Callable[[], None]:
    """Return a function that shows new entries of other processes in the run folder."""
    shown, status = 0, StatusFile(folder.path / "logs" / "nodes.jsonl")

    def follow() -> None:
        nonlocal shown
        file = folder.path / "metrics.jsonl"
        complete = file.read_text().splitlines(keepends=True) if file.exists() else []
        complete = [line for line in complete if line.endswith("\n")]
        for line in complete[shown:]:
            display.on_line(json.loads(line))
        shown = len(complete)
        for warning in (line for line in status.new_lines() if line.level >= logging.WARNING):
            with (folder.path / "logs" / "flower.log").open("a") as log:
                log.write(f"{indented(warning.text)}\n")
            # Errors end the run, with the same words.
            if warning.level == logging.WARNING:
                show(warning, console)

    return follow


def _tail(path: Path, lines: int = 30) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
