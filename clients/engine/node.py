"""The node of a ClientApp: its data and state, its clients, and their cohorts."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context, RecordDict

from fedgraph.clients.engine.agreement import Agreement, agreement_of
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.data import CLIENT, SPLITS, DataSource, OwnData, Preprocessing, open_source, parse_data
from fedgraph.data.series import shares_scales
from fedgraph.experiment import AgreementTable
from fedgraph.federation import configured_clients, hosted_clients, listed, prove
from fedgraph.federation.grids import is_simulated
from fedgraph.models import ModelChoice
from fedgraph.privacy import Ledger, kept_secret
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import FULL_ERRORS, DataError, IdentityError, quoted
from fedgraph.support.files import file_name, json_digest, run_state
from fedgraph.support.untrusted import read_json
from fedgraph.training import ClientState, Cohort, state_folder

log = logging.getLogger("fedgraph")

Prepared = TypeVar("Prepared")

_COHORTS_KEPT = 512
_PLACES = ("data-dir", "model", "model-dir", "private-key", "state-dir")
_PATH = re.compile(r"(^|[\s'\"(=:,\[])(?:/|~/|[A-Za-z]:\\)[^\s'\"),:;\]]+")
_SUFFIX = r"\.(?:png|jpe?g|npz|csv|gz|parquet|h5|hdf5)\b"
_CONFIG = "FEDGRAPH_NODE_CONFIG"
"""Node config of all nodes of a simulation, as JSON."""

_PREPARED_KEPT = 4

_RELEASES = "releases"


@dataclass(frozen=True)
class Node:
    """A node, described by its node config.

    Attributes
    ----------
    config : mapping
        The node config, with hyphens in its keys.
    data_dir : Path
        Node config ``data-dir``, else ``FEDGRAPH_DATA``, else in simulations run config ``data-dir``, which is the
        server's, else the user's cache.
    state_dir : Path
        Node config ``state-dir``, else ``FEDGRAPH_STATE``, else a folder in the user's home.
    model_dir : Path
        Node config ``model-dir``, else ``FEDGRAPH_MODELS``, else a folder in ``state_dir``. Contains clients' frozen
        models, shared by runs with the same settings, and in ``graphical``, by run, their personal graphical models.
    own : OwnData or None
        Node config ``data``, absolute or relative to ``data_dir``, with the clients of the node config.
    done : list of str
        Log of the work on a message, for the operator of the node: ``trained round 2 on 210 rows``. Client classes may
        append to it.
    states : dict of (str, str) to ClientState
        Clients' state that was loaded or saved for a message, by run and purpose.
    attempts : mapping of str to int
        Attempts at the run of the message, see :class:`fedgraph.training.ClientState`.
    """

    config: Mapping[str, Any]
    data_dir: Path
    state_dir: Path
    model_dir: Path
    own: OwnData | None = None
    done: list[str] = field(default_factory=list, compare=False, repr=False)
    states: dict[tuple[str, str], ClientState] = field(default_factory=dict, compare=False, repr=False)
    attempts: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, context: Context) -> Node:
        """Build the node of a message."""
        given = json.loads(os.environ.get(_CONFIG, "{}")) | dict(context.node_config)
        config = {key.replace("_", "-"): value for key, value in given.items()}
        folder = config.get("data-dir") or os.environ.get("FEDGRAPH_DATA")
        if not folder and is_simulated():
            folder = context.run_config.get("data-dir")
        state_dir = state_folder(config)
        models = config.get("model-dir") or os.environ.get("FEDGRAPH_MODELS")
        model_dir = Path(str(models)).expanduser() if models else state_dir / "local-models"
        data_dir = data_folder(str(folder) if folder else None)
        own = None
        if config.get("data"):
            path = (data_dir / Path(str(config["data"])).expanduser()).absolute()
            own = OwnData(path, configured_clients(config), str(config.get("site", "")))
        return cls(config, data_dir, state_dir, model_dir, own)

    @cached_property
    def agreement(self) -> Agreement | None:
        """What this node answers (node config ``agreement``); None for everything, as in a simulation.

        Raises IdentityError for limits that would not hold, and ExperimentError for an unusable file.
        """
        return agreement_of(self.config)

    @cached_property
    def limits(self) -> AgreementTable:
        """The site's limits on what leaves; of a node without an agreement the defaults."""
        return AgreementTable() if self.agreement is None else self.agreement.table

    @property
    def least_rows(self) -> int:
        """The fewest rows about which anything leaves; 1 without an agreement."""
        return 1 if self.agreement is None else self.limits.least_rows

    @cached_property
    def simulated(self) -> bool:
        """Whether the node is simulated, so that whoever runs the experiment has all data."""
        return self.agreement is None and is_simulated()

    def ledger(self, run: str, client: str, what: str, holder: str = "") -> Ledger:
        """Return the ledger of what was released about a client, over all runs with the node's state folder.

        Simulations of any experiments share the folder in the home: there it is over one run.
        """
        given = self.config.get("state-dir") or os.environ.get("FEDGRAPH_STATE")
        place = self.state_dir if given or not self.simulated else run_state(self.state_dir, run)
        return Ledger(place / _RELEASES, client, what, holder)

    @property
    def secret(self) -> bytes:
        """32 bytes that this node alone has, in all runs."""
        return kept_secret(self.state_dir / _RELEASES / "secret.key", 32, lambda: os.urandom(32))

    def forecast_folder(self, run: str) -> Path:
        """Return the folder of forecasts of the models of a run."""
        return self.state_dir / "forecasts" / file_name(run)

    @property
    def aggregator(self) -> str | None:
        """Name of this node as an aggregator of secret shares (node config ``aggregator``), or None.

        It may host clients; without ``clients`` and ``partition-id`` it hosts none.
        """
        return str(self.config["aggregator"]) if self.config.get("aggregator") else None

    def prove(self, challenge: str, node: int, clients: Sequence[str]) -> bytes:
        """Sign with the node's ``private-key`` that this node, with Flower's id ``node``, may host ``clients``.

        Raises IdentityError when the node config has no usable key.
        """
        if not self.config.get("private-key"):
            raise IdentityError(
                "the run requires nodes to prove which clients they host: set the node config key 'private-key', the "
                "file of the key with which its SuperNode authenticates itself"
            )
        return prove(Path(str(self.config["private-key"])), challenge, node, clients)

    @property
    def sends_full_errors(self) -> bool:
        """Whether the server receives full error messages, by node config ``full-errors`` or ``FEDGRAPH_FULL_ERRORS``.

        Not by default, because they may contain folders of this machine or values of a computation.
        """
        return bool(self.config.get("full-errors") or os.environ.get(FULL_ERRORS))

    @property
    def raises(self) -> bool:
        """Whether exceptions during the work on a message are raised, as in simulations."""
        return os.environ.get(FULL_ERRORS) == "raise"

    def without_places(self, text: str) -> str:
        """Return ``text`` without paths of this machine; those in the node config become <key>."""
        if self.own is not None:
            for path in {str(self.own.path).replace(CLIENT, name) for name in (*self.own.clients, CLIENT)}:
                # File names in the node's folder may be names of patients, with blanks: remove all up to the suffix.
                own = re.escape(path)
                text = re.sub(rf"{own}(/(?:(?!{own})[^\n:])*{_SUFFIX}|/[^\s'\"),:;\]]+)?", "<data>", text)
        places = {key: str(self.config[key]) for key in _PLACES if self.config.get(key)}
        places |= {"data-dir": str(self.data_dir), "state-dir": str(self.state_dir), "model-dir": str(self.model_dir)}
        # Inner folders first.
        for key, place in sorted(places.items(), key=lambda item: -len(item[1])):
            text = text.replace(str(Path(place).expanduser().absolute()), f"<{key}>")
            # A relative path without a slash is only recognised if a slash follows.
            own = re.escape(place) if "/" in place else rf"(?<![\w./-]){re.escape(place)}(?=/)"
            text = re.sub(own, f"<{key}>", text)
        return _PATH.sub(lambda found: f"{found[1]}<path>", text)

    def hosted(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the clients of the run on this node.

        Raises IdentityError for an incomplete node config, and DataError for names that are no text or occur twice.
        """
        if self._only_aggregates:
            return ()
        source = self.source(assignment)
        known = source.client_names()
        if odd := [name for name in known if not isinstance(name, str)]:
            raise DataError(f"{type(source).__name__}.client_names() must return texts; it returned {odd[0]!r}")
        if twice := [name for name, count in Counter(known).items() if count > 1]:
            raise DataError(f"{type(source).__name__}.client_names() returned these twice: {quoted(twice)}")
        names = tuple(known) if self._hosts_own_data else hosted_clients(self.config, known)
        return names if assignment.expect is None else tuple(name for name in names if name in set(assignment.expect))

    def partition(self) -> tuple[int, int] | None:
        """Return ``(partition-id, num-partitions)``, or None for a node that names its clients."""
        if "clients" in self.config or self._only_aggregates or self._hosts_own_data:
            return None
        return int(self.config["partition-id"]), int(self.config["num-partitions"])

    @property
    def _only_aggregates(self) -> bool:
        return self.aggregator is not None and self.own is None and not {"clients", "partition-id"} & set(self.config)

    @property
    def _hosts_own_data(self) -> bool:
        """Whether the node hosts all clients of its own data, as its config names none."""
        return self.own is not None and not {"clients", "partition-id"} & set(self.config)

    def existing_models(self, hosted: Sequence[str], known: Sequence[str] = ()) -> dict[str, str]:
        """Return the existing models of clients of this node, from the node config.

        ``model`` is one for all of them; ``models`` is a comma-separated list of ``client=model``, which nodes may
        share: entries of other ``known`` clients are ignored. Raises IdentityError for an entry without a known client
        or a model.
        """
        models = dict.fromkeys(hosted, str(self.config["model"])) if self.config.get("model") else {}
        for entry in listed(str(self.config.get("models", ""))):
            # Names and paths may contain "=": the longest hosted name is used.
            ways = [(entry[:at].strip(), entry[at + 1 :].strip()) for at, letter in enumerate(entry) if letter == "="]
            client, model = next((way for way in reversed(ways) if way[0] in hosted), ("", ""))
            if not model:
                if "partition-id" in self.config and any(entry.startswith(f"{name}=") for name in known):
                    continue
                raise IdentityError(
                    f"invalid entry '{entry}' of node config 'models': expected 'client=model'; the clients of this "
                    f"node are {', '.join(hosted)}"
                )
            models[client] = model
        return models

    def source(self, assignment: Assignment) -> DataSource:
        """Open the data set of the experiment from this node's data folder, or its own data.

        Raises IdentityError when the node config has both ``partition-id``, for a common data set, and own ``data``.
        """
        if self.own is not None and "clients" not in self.config and "partition-id" in self.config:
            raise IdentityError(
                "node config 'partition-id' is for a common data set, but 'data' is the node's own: name its clients "
                "by 'clients' instead of 'partition-id' and 'num-partitions'"
            )
        return _source(assignment.data.model_dump_json(), self.data_dir, self.own)

    def cohort(self, experiment: str, clients: tuple[str, ...]) -> Cohort:
        """Return the cohort of these clients, cached per process.

        Raises ExperimentError for fewer rows than the site's agreement requires.
        """
        return self._with_enough_rows(_cohort(_without_forecasts(experiment), clients, self.data_dir, self.own))

    def _with_enough_rows(self, cohort: Cohort) -> Cohort:
        data = cohort.data
        if self.agreement is not None:
            of = {split: data.splits[split].num_examples.tolist() for split in SPLITS}
            for row, name in enumerate(data.names):
                self.check_rows(name, {split: numbers[row] for split, numbers in of.items()})
                if self.agreement.label_counts and data.label_counts is not None:
                    counts = data.label_counts[row].tolist()
                    self.agreement.check_rows(
                        name, {f"rows of class {place}": each for place, each in enumerate(counts)}
                    )
        return cohort

    def check_rows(self, client: str, by_split: Mapping[str, int]) -> None:
        """Raise ExperimentError for fewer rows of a split, about which something leaves, than the agreement requires.

        New rows, of which predictions are asked for, are told one by one.
        """
        if self.agreement is not None:
            told = {"train", *self.agreement.splits}
            rows = {f"{split} rows": number for split, number in by_split.items() if split in told}
            self.agreement.check_rows(client, rows)

    def opening_cohort(self, experiment: str, clients: tuple[str, ...], client_class: type) -> Cohort:
        """Return the cohort that the opening query describes, for a run with ``client_class``.

        It is not cached if scales come from other clients, as rounds use other data. If the class does not divide data,
        all examples are for training.
        """
        assignment = Assignment.of(experiment)
        if not getattr(client_class, "divides", True):
            whole = assignment.data.model_copy(update={"shares": (1.0, 0.0, 0.0)})
            assignment = replace(assignment, data=whole)
        elif not shares_scales(assignment.data):
            return self.cohort(experiment, clients)
        return self._with_enough_rows(_loaded(assignment, self.source(assignment), clients))

    def prepared(self, key: Hashable, build: Callable[[], Prepared]) -> Prepared:
        """Return the result of ``build``, cached per ``key`` and node in this process."""
        place = (key, self.data_dir, self.own, self.model_dir)
        if place not in _prepared:
            if len(_prepared) >= _PREPARED_KEPT:
                _prepared.pop(next(iter(_prepared)))
            _prepared[place] = build()
        found: Prepared = _prepared[place]
        return found

    def once_per_run(self, run: str, key: Hashable, build: Callable[[], Prepared]) -> Prepared:
        """Return the result of ``build``, cached per run, ``key`` and node in this process, for the current run."""
        if run not in _of_run:
            _of_run.clear()
            _of_run[run] = {}
        place = (key, self.data_dir, self.own)
        if place not in _of_run[run]:
            _of_run[run][place] = build()
        found: Prepared = _of_run[run][place]
        return found

    def record(
        self, run: str, what: str, clients: Sequence[str], content: RecordDict, before: int | None = None
    ) -> None:
        """Record that a request is answered, where the node has an agreement; see :meth:`Agreement.record`.

        ``before`` : the answer depends on the clients' state after earlier rounds than this one.
        """
        if self.agreement is not None:
            states = self._states(run, clients, before)
            self.agreement.record(run_state(self.state_dir, run), what, clients, content, states)

    def record_work(
        self, run: str, what: str, clients: Sequence[str], content: RecordDict, before: int, per_round: int
    ) -> None:
        """The same for one to train or evaluate. With rounds it counts over all runs, whatever their names."""
        if (agreement := self.agreement) is not None:
            folder, where = run_state(self.state_dir, run), "in a run"
            if not agreement.has_phases:
                folder = self.state_dir / _RELEASES / json_digest([agreement.client, agreement.part])[:32]
                where = 'over all runs; for more, the site sets [agreement] open = ["experiment.rounds <= ..."]'
            states, most = self._states(run, clients, before), per_round * agreement.most_rounds
            agreement.record(folder, what, clients, content, states, most, where)

    def _states(self, run: str, clients: Sequence[str], before: int | None) -> list[Any]:
        """Return digests of the clients' state of a run that requests read, after rounds below ``before``."""
        folder = run_state(self.state_dir, run)
        if before is None or not folder.is_dir():
            return []
        purposes = sorted({path.name for path in folder.iterdir() if path.is_dir()} - {ClientState.MEASURED})
        states = {each: ClientState(self.state_dir, run, each, self.attempts) for each in purposes}
        found = [[purpose, state.identities(clients, before)] for purpose, state in states.items()]
        return [each for each in found if each[1]]

    def keep_preprocessing(self, run: str, experiment: str, clients: tuple[str, ...]) -> None:
        """Store the preprocessing of the clients' data once per run, for predictions after the run."""

        def keep() -> None:
            found = self.cohort(experiment, clients).data.preprocessing
            try:
                if found is not None:
                    found.write(run_state(self.state_dir, run) / Preprocessing.FOLDER)
            except OSError as error:
                log.warning(
                    "cannot store the scales of the data; predictions after the run are not possible: %s", error
                )

        self.once_per_run(run, (Preprocessing.FOLDER, self.state_dir, clients), keep)

    def state(self, run: str, purpose: str) -> ClientState:
        """Return the state of this node's clients in a run for one purpose, such as ``optimiser``."""
        return self.states.setdefault((run, purpose), ClientState(self.state_dir, run, purpose, self.attempts))


_prepared: dict[Hashable, Any] = {}
_of_run: dict[str, dict[Hashable, Any]] = {}
"""Objects of the current run's nodes in this process, by run."""


def forget_data() -> None:
    """Release all that was read in this process, as files and classes may have changed since, as in a notebook."""
    forget_cohorts()
    _source.cache_clear()


def forget_cohorts() -> None:
    """Release the clients and models of all experiments of this process; data sets stay."""
    _cohort.cache_clear()
    _prepared.clear()
    _of_run.clear()


@lru_cache(maxsize=32)
def _source(data: str, data_dir: Path, own: OwnData | None) -> DataSource:
    return open_source(parse_data(json.loads(data)), data_dir, own)


@lru_cache(maxsize=64)
def _without_forecasts(experiment: str) -> str:
    """Return the experiment without the key that the last exchange adds, which does not change the cohort."""
    tables = read_json(experiment, "the experiment of the request")
    return json.dumps({name: table for name, table in tables.items() if name != "forecasts"}, sort_keys=True)


@lru_cache(maxsize=_COHORTS_KEPT)
def _cohort(experiment: str, clients: tuple[str, ...], data_dir: Path, own: OwnData | None) -> Cohort:
    assignment = Assignment.of(experiment)
    return _loaded(assignment, _source(assignment.data.model_dump_json(), data_dir, own), clients)


def _loaded(assignment: Assignment, source: DataSource, clients: tuple[str, ...]) -> Cohort:
    data = source.load(clients)
    return Cohort(ModelChoice.of(assignment.model).build(data.task), data, assignment.train, assignment.seed)
