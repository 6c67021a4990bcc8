"""Checks of one class, with the exceptions that it declares, for the command and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import SkipTest

from fedgraph.commands.checking.checks import COMPARED, CONTRACT
from fedgraph.commands.checking.subject import Subject
from fedgraph.commands.checking.trials import Trials
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError

Status = Literal["pass", "fail", "skipped", "expected"]


@dataclass(frozen=True)
class Result:
    """What came of a check.

    Attributes
    ----------
    name, words : str
        Name of the check, and what it checks.
    status : {"pass", "fail", "skipped", "expected"}
        ``expected`` for a failure that the class declares.
    text : str
        A remark; of a failure, what went wrong and what to do.
    """

    name: str
    words: str
    status: Status
    text: str


@dataclass(frozen=True)
class Check:
    """One check of one class.

    Called, it does nothing for a class that keeps the promise, raises ContractError for one that does not, and
    ``unittest.SkipTest``, which pytest knows, where it does not apply or a failure is expected.

    Attributes
    ----------
    name : str
        Name of the check.
    trials : Trials
        Runs of the class, common to all its checks.
    expected : str or None
        Reason for which the class is expected to fail it.
    """

    name: str
    trials: Trials
    expected: str | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Make the check; see the class."""
        result = self.result()
        if result.status == "fail":
            raise ContractError(f"{self.trials.subject.path}: {self.name} ({result.words}): {result.text}")
        if result.status != "pass":
            raise SkipTest(result.text)

    def result(self) -> Result:
        """Make the check."""
        words, check, _ = CONTRACT[self.name]
        if not self.trials.repeats and self.name in COMPARED:
            return Result(self.name, words, "skipped", "two runs with the same seed differ already: see 'same-seed'")
        try:
            status, text = self._judged(True, check(self.trials))
        except SkipTest as reason:
            status, text = "skipped", str(reason)
        except FedgraphError as error:
            status, text = self._judged(False, str(error))
        return Result(self.name, words, status, text)

    def _judged(self, kept: bool, text: str) -> tuple[Status, str]:
        if self.expected is None:
            return ("pass" if kept else "fail"), text
        if kept:
            return "fail", (
                f"expected_failures says that it fails ({self.expected}), but it passes: take '{self.name}' out of them"
            )
        return "expected", self.expected


def checks_of(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Check]:
    """Return the checks of a class; nothing is run yet.

    Parameters
    ----------
    what : str or type
        Dotted path ``package.module:Class`` of a strategy or client class, or the class; or the short name of a
        built-in method.
    experiment : str or Path, optional
        Experiment file, where the class does not run on handwritten digits.
    overrides : iterable of str
        Values such as ``train.learning-rate=0.05``.
    ray : bool, default False
        Also run it on Ray, which takes a minute.

    Returns
    -------
    list of Check
        Those that apply to the class.

    Raises
    ------
    ExperimentError
        When the class cannot be found or run, or declares a failure of an unknown check.
    """
    subject = Subject.of(what, experiment, overrides)
    expected: Mapping[str, str] = getattr(subject.checked, "expected_failures", {})
    unknown = sorted(set(expected) - set(CONTRACT))
    if unknown:
        raise ExperimentError(
            f"'{subject.path}' declares expected_failures of '{unknown[0]}'; checks are {', '.join(CONTRACT)}"
        )
    trials = Trials(subject)
    return [
        Check(name, trials, expected.get(name))
        for name, contract in CONTRACT.items()
        if (contract.of_clients or not subject.is_client) and (ray or name != "ray")
    ]


def check_strategy(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Result]:
    """Make all checks of a strategy or client class; parameters and errors as for :func:`checks_of`.

    Returns
    -------
    list of Result
        What came of each check.

    Raises
    ------
    ContractError
        When the class fails any, with all that it fails.
    """
    results = [check.result() for check in checks_of(what, experiment, overrides, ray)]
    failed = [f"{result.name} ({result.words}): {result.text}" for result in results if result.status == "fail"]
    if failed:
        raise ContractError("\n".join([f"{what} does not keep the contract:", *failed]))
    return results
