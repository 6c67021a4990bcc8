"""The agreement of a site: the experiment file that it has, which decides what its node answers."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedgraph.algorithms.phases import has_phases
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import shares_scales
from fedgraph.experiment import AgreementTable, Experiment, load_experiment
from fedgraph.federation.grids import is_simulated
from fedgraph.messages import KEEP_KEY, ROUND_KEY, RUN_KEY, unpacking_request
from fedgraph.messages.frozen_layers import RECORD as FROZEN
from fedgraph.support.errors import ExperimentError, IdentityError, ReplyError, RunError, similar
from fedgraph.support.files import load_json, locked, private_folder, write_atomically
from fedgraph.support.untrusted import in_short, read_json

ANY = "any"
"""Node config ``agreement`` of a node that answers every run."""

_TABLES = {
    "seed": "experiment.seed",
    "expect": "clients.expect",
    "terms": "experiment.method",
    "horizons": "evaluation.horizons",
    "missing-as": "evaluation.missing-as",
    "unseen-classes": "evaluation.unseen-classes",
    "forecasts": "evaluation.forecasts",
}
"""Keys of the experiment, by those of the nodes' part of it; tables keep their names, and the method's has its own."""

_OWN_PLACES = ("data.path", "data.test-path", "data.graph")
"""Keys of files on the node itself, for which its own values stand."""

_ROUNDS = "experiment.rounds"
_MESSAGE_KEYS = (_ROUNDS, "evaluation.splits", "evaluation.compare-peers", "graph.source")
"""Keys that are not in the nodes' part, but decide which messages nodes answer."""

_LIMITS = ("agreement", "aggregator-fingerprints")
_REPLACED = (
    "allow", "any-files", "consent", "consent-delta", "consent-epsilon", "consent-rows", "least-noise", "most-messages"
)  # fmt: skip
"""Keys of a node config that an agreement has replaced."""

_OPEN = re.compile(r"([\w.-]+)(?:\s*(<=|>=)\s*(\S+))?")
_LONGEST_VALUE = 120
_MOST_NAMED = 3


@dataclass(frozen=True)
class Agreement:
    """What a node answers.

    Attributes
    ----------
    client : dotted path of the client class.
    part : the nodes' part of the experiment.
    method : name of the method's table.
    rounds : the last round; of a method of phases 1, for its requests to train or evaluate.
    splits : splits on which models are evaluated.
    compares_peers : whether predictions of test examples may leave the node.
    label_counts : whether numbers of labels may leave the node.
    table : ``[agreement]``, the site's own limits.
    bounds : what is open, by key: an interval for a number, or None for any value.
    has_phases : whether the method has phases instead of rounds.
    """

    client: str
    part: Mapping[str, Any]
    method: str
    rounds: int
    splits: tuple[SplitName, ...]
    compares_peers: bool
    label_counts: bool
    table: AgreementTable
    bounds: Mapping[str, tuple[float, float] | None]
    has_phases: bool

    @classmethod
    def of(cls, experiment: Experiment) -> Agreement:
        """Return the agreement on an experiment.

        Raises ExperimentError for entries of ``[agreement] open`` that are no key of it.
        """
        settings = experiment.method_settings.as_table(nulls=True)
        part = json.loads(experiment.client_part(settings))
        head, evaluation, name = experiment.experiment, experiment.evaluation, experiment.method.name
        tables = {_key(key, name): value for key, value in part.items()}
        known = [*_MESSAGE_KEYS, *_TABLES.values(), *(key for key, _ in _items(tables))]
        phased = has_phases(experiment.method.strategy_class)
        bounds = dict(_bound(entry, known) for entry in experiment.agreement.open)
        if shares_scales(experiment.data):
            bounds["data.scales"] = None  # computed from all clients in the run
        return cls(
            client=experiment.method.client_class,
            part=part,
            method=name,
            rounds=1 if phased else head.rounds,
            splits=SPLITS if {"evaluation", "evaluation.splits"} & bounds.keys() else tuple(evaluation.splits),
            compares_peers=evaluation.compare_peers,
            label_counts=experiment.graph.source == "labels",
            table=experiment.agreement,
            bounds=bounds,
            has_phases=phased,
        )

    def agreed(self, client: str, experiment: str) -> str:
        """Return the nodes' part of the experiment to work by: the agreed one, with what the request may change.

        Raises ExperimentError that names the keys in which a request differs, what was agreed and what was asked.

        Parameters
        ----------
        client : dotted path of the client class of the request.
        experiment : nodes' part of the experiment of the request, as JSON.
        """
        asked = read_json(experiment, "the experiment of the request")
        if not isinstance(asked, dict):
            raise ExperimentError("the experiment of the request is malformed: it is not a table")
        differences = [] if client == self.client else [("experiment.client", self.client, client)]
        # Not in all rounds.
        agreed = {name: value for name, value in self.part.items() if name != "forecasts" or name in asked}
        merged = {}
        for name in sorted({*agreed, *asked}):
            merged[name] = self._merged(_key(name, self.method), agreed.get(name), asked.get(name), differences)
        if differences:
            raise ExperimentError(_refusal(differences))
        return json.dumps({name: value for name, value in merged.items() if name in asked}, sort_keys=True)

    def check_message(self, content: RecordDict) -> None:
        """Raise ExperimentError for predictions, splits, counts or rounds that the experiment does not ask for.

        Raises ReplyError for a round before the first one.
        """
        config: Mapping[str, Any] = content.config_records.get("config", {})
        works, first = "train" in config, int(bool(config.get("train")))
        with unpacking_request():
            number, more = int(config.get(ROUND_KEY, first)), sorted({*config.get("evaluate", ())} - {*self.splits})
        if number < first:
            raise ReplyError(f"the request is for round {number}, and rounds begin at {first}")
        asked: dict[str, tuple[bool, Any, Any]] = {
            "graph.source": (bool(config.get("label-counts")) and not self.label_counts, None, "labels"),
            "evaluation.compare-peers": (bool(config.get("predict")) and not self.compares_peers, False, True),
            "evaluation.splits": (bool(more), list(self.splits), more),
            _ROUNDS: (works and number > self.rounds, self.rounds, number),
        }
        differences = [
            (key, agreed, wanted)
            for key, (exceeds, agreed, wanted) in asked.items()
            if exceeds and not self._is_open(key, wanted)
        ]
        if differences:
            raise ExperimentError(_refusal(differences))

    def check_rows(self, client: str, rows: Mapping[str, int]) -> None:
        """Raise ExperimentError for a set of rows smaller than ``least-rows``; empty ones tell of nobody.

        ``rows`` : numbers of rows about which something leaves, by their name: ``training rows``.
        """
        least = self.table.least_rows
        for what, number in rows.items():
            if 0 < number < least:
                raise ExperimentError(
                    f"client '{client}' has {number} {what}, and its site answers about {least} at least "
                    "([agreement] least-rows): lower it there, or ask for less"
                )

    def _merged(self, key: str, agreed: Any, asked: Any, differences: list[tuple[str, Any, Any]]) -> Any:
        """Return the value to work by; add a difference that is not open to ``differences``."""
        if key in _OWN_PLACES or key == f"{self.method}.data":
            return agreed
        if isinstance(agreed, dict) and isinstance(asked, dict):
            return {
                name: self._merged(f"{key}.{name}", agreed.get(name), asked.get(name), differences)
                for name in sorted({*agreed, *asked})
            }
        if json.dumps(agreed, sort_keys=True) == json.dumps(asked, sort_keys=True):
            return agreed
        if self._is_open(key, asked):
            return asked
        differences.append((key, agreed, asked))
        return agreed

    def _is_open(self, key: str, asked: Any) -> bool:
        if _may_name_code(asked) and key not in self.bounds:
            return False  # code is opened by its own key alone
        parts = key.split(".")
        for entry in (".".join(parts[: end + 1]) for end in range(len(parts))):
            if entry in self.bounds:
                bound = self.bounds[entry]
                return bound is None or (type(asked) in (int, float) and bound[0] <= asked <= bound[1])
        return False

    @property
    def most_rounds(self) -> float:
        """The most rounds that are agreed or open."""
        bound = next((self.bounds[key] for key in ("experiment", _ROUNDS) if key in self.bounds), (0, self.rounds))
        return math.inf if bound is None else max(self.rounds, bound[1])

    def record(
        self,
        folder: Path,
        what: str,
        clients: Sequence[str],
        content: RecordDict,
        state: Any = None,
        most: float = 1,
        where: str = "in a run",
    ) -> None:
        """Record that a request is answered, before it is; one that is repeated, from the same state, counts once.

        Raises ExperimentError for one more than ``most`` different requests for the same clients.

        Parameters
        ----------
        folder : folder for what is counted together.
        what : name of the request, such as ``phase 'fit' 3``; ``where`` it counts is for the error.
        clients : the clients that it is about.
        content, state : the request, and a JSON value on which its answer depends, too.
        """
        digest, path = _digest(content, state), folder / "answered.json"
        private_folder(folder)
        with locked(path.with_suffix(".lock")):
            try:
                answered: dict[str, dict[str, list[str]]] = load_json(path) if path.exists() else {}
            except (OSError, ValueError) as error:
                raise RunError(f"{path} cannot be read ({error}): without it nothing more is answered") from None
            before, wanted = answered.setdefault(what, {}), set(clients)
            if wanted and wanted.issubset(before.get(digest, ())):
                return
            if digest not in before and sum(bool(wanted.intersection(names)) for names in before.values()) >= most:
                times = "once" if most == 1 else f"{most:.0f} times"
                raise ExperimentError(f"this site answers a request for {what} {times} {where}")
            before[digest] = sorted(wanted.union(before.get(digest, ())))
            write_atomically(path, json.dumps(answered).encode(), private=True)


def agreement_of(config: Mapping[str, Any]) -> Agreement | None:
    """Return the agreement that a node config names, or None.

    Raises IdentityError for limits that would not hold, and ExperimentError for a file that is no experiment.
    """
    for key in config:
        if key in _REPLACED:
            raise IdentityError(
                f"node config '{key}' has no effect: its agreement, an experiment file, says what this node answers, "
                "with limits in the table [agreement]"
            )
        if key not in _LIMITS and (meant := similar([key], _LIMITS)):
            raise IdentityError(f"node config has the key '{key}', which limits nothing{meant}")
    named = str(config.get("agreement", ""))
    if named in ("", ANY):
        return None
    try:
        changed = os.stat(named).st_mtime_ns
    except OSError as error:
        raise IdentityError(f"node config 'agreement': cannot read {named}: {error.strerror}") from None
    return _read(named, changed)


def check_answers_any(config: Mapping[str, Any]) -> None:
    """Raise IdentityError for a node without an agreement, unless it is simulated or says that it answers every run."""
    if config.get("agreement") != ANY and not is_simulated():
        raise IdentityError(
            "this node has agreed to no experiment: start it with `fedgraph node EXPERIMENT.toml`, or set its node "
            f'config key agreement, to the path of one or to "{ANY}" to answer every run'
        )


def keys_of(experiment: Experiment) -> dict[str, Any]:
    """Return all values of an experiment by dotted key, with those of ``[agreement]``."""
    tables = {**experiment.as_dict(), "agreement": experiment.agreement.as_table()}
    return json.loads(json.dumps(dict(_items(tables))))


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two experiments differ, as ``key: before, now after``."""
    keys = sorted({*before, *now})
    return [
        f"{key}: {_text(before.get(key))}, now {_text(now.get(key))}" for key in keys if before.get(key) != now.get(key)
    ]


def _key(name: str, method: str) -> str:
    """Return the key of the experiment by that of the nodes' part of it."""
    return _TABLES.get(name, method if name == "method" else name)


@lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Agreement:
    return Agreement.of(load_experiment(path))


def _bound(entry: str, known: Sequence[str]) -> tuple[str, tuple[float, float] | None]:
    """Read an entry of ``[agreement] open``: a key, or a key and a bound on its number."""
    parts = _OPEN.fullmatch(entry.strip())
    if parts is None:
        raise ExperimentError(f"[agreement] open: '{entry}' is not a key such as 'experiment.rounds <= 200'")
    key, sign, number = parts.groups()
    if not any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in known):
        raise ExperimentError(f"[agreement] open: this experiment has no key '{key}'{similar([key], known)}")
    if sign is None:
        return key, None
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if math.isnan(limit):
        raise ExperimentError(f"[agreement] open: '{entry}' compares with '{number}', which is not a number")
    return key, (-math.inf, limit) if sign == "<=" else (limit, math.inf)


def _items(tables: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of all tables."""
    for name, value in tables.items():
        key = f"{parent}.{name}" if parent else name
        if isinstance(value, Mapping) and value:
            yield from _items(value, key)
        else:
            yield key, value


def _may_name_code(value: Any) -> bool:
    """Return whether a text in a value has a colon."""
    if isinstance(value, (dict, list)):
        return any(map(_may_name_code, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and ":" in value


def _refusal(differences: Sequence[tuple[str, Any, Any]]) -> str:
    listed = "; ".join(
        f"{key} is {_text(agreed)}, and the run asks for {_text(asked)}"
        for key, agreed, asked in differences[:_MOST_NAMED]
    )
    more = f"; and {len(differences) - _MOST_NAMED} more keys" if len(differences) > _MOST_NAMED else ""
    return f"this site has agreed to another experiment: {listed}{more}. It may agree to this one, or leave keys open"


def _text(value: Any) -> str:
    return "unset" if value is None else in_short(json.dumps(value), _LONGEST_VALUE)


_NOT_CONTENT = (RUN_KEY, "attempts", "attempts-until", KEEP_KEY)
"""Parts of a request that only say in which run, or which state counts."""


def _digest(content: RecordDict, state: Any) -> str:
    """Return a digest of what a request asks for, from which state; frozen layers are in it by their fingerprint."""
    digest = hashlib.blake2b(json.dumps(state).encode(), digest_size=16)
    for name, record in sorted(content.config_records.items()):
        entries = {key: value for key, value in record.items() if key not in _NOT_CONTENT}
        digest.update(repr((name, sorted(entries.items()))).encode())
    for name, arrays in sorted(content.array_records.items()):
        if name == FROZEN:
            continue
        for key, array in sorted(arrays.items()):
            digest.update(repr((name, key, array.dtype, array.shape)).encode())
            digest.update(array.data)
    return digest.hexdigest()
