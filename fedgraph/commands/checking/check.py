"""The checks of one class, with its declared failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

from fedgraph.commands.checking.contract import CONTRACT, Promise
from fedgraph.commands.checking.data_sets import DATA_CONTRACT, CheckedData, is_data_set
from fedgraph.commands.checking.subject import Subject
from fedgraph.commands.checking.trials import Trials
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError

Status = Literal["pass", "fail", "skipped", "expected"]


@dataclass(frozen=True)
class Result:
    """The result of a check: its name, its promise, its status, and a remark or the error.

    The status ``expected`` is a declared failure.
    """

    name: str
    words: str
    status: Status
    text: str


@dataclass(frozen=True)
class Check:
    """One promise of one class, with the reason for a declared failure, if any.

    Calling it raises ContractError if the class breaks the promise, and ``unittest.SkipTest``, which pytest supports,
    if the promise does not apply or the failure is declared.
    """

    name: str
    promise: Promise
    target: Trials | CheckedData
    expected: str | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Run the check; see the class."""
        result = self.result()
        if result.status == "fail":
            raise ContractError(f"{self.target.title}: {self.name} ({result.words}): {result.text}")
        if result.status != "pass":
            raise SkipTest(result.text)

    def result(self) -> Result:
        """Run the check, and return its result."""
        status: Status = "pass"
        try:
            text = self.promise.check(self.target)
        except SkipTest as reason:
            return Result(self.name, self.promise.words, "skipped", str(reason))
        except FedgraphError as error:
            status, text = "fail", str(error)
        except Exception as error:  # raised by the checked class
            status, text = "fail", f"{type(error).__name__}: {error}"
        if self.expected is not None and status == "fail":
            status, text = "expected", self.expected
        elif self.expected is not None:
            text = f"passes, but expected_failures declares that it fails ({self.expected}): remove '{self.name}'"
            status = "fail"
        return Result(self.name, self.promise.words, status, text)


def checks_of(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Check]:
    """Return the checks of a class, without running them.

    Parameters
    ----------
    what : str or type
        Dotted path ``package.module:Class`` of a strategy, client class or data set, or the class; or the name of a
        built-in method.
    experiment : str or Path, optional
        Experiment file, if the class does not run on handwritten digits.
    overrides : iterable of str
        Overrides such as ``train.learning-rate=0.05``, or keys of a data set, such as ``data.path=wards.csv``.
    ray : bool, default False
        Also run it on Ray, which takes a minute.

    Raises
    ------
    ExperimentError
        When the class cannot be found or run, or declares a failure of an unknown check.
    """
    if is_data_set(what):
        data = CheckedData.of(what, experiment, overrides)
        return _checks(DATA_CONTRACT, data, data.kind)
    subject = Subject.of(what, experiment, overrides)
    kept_by_clients = {name: promise for name, promise in CONTRACT.items() if promise.of_clients}
    checks = _checks(kept_by_clients if subject.is_client else CONTRACT, Trials(subject), subject.checked)
    return [check for check in checks if ray or check.name != "ray"]


def _checks(contract: dict[str, Promise], target: Trials | CheckedData, kind: type[Any]) -> list[Check]:
    expected = getattr(kind, "expected_failures", {})
    unknown = sorted(set(expected) - set(contract))
    if unknown:
        raise ExperimentError(
            f"{target.title}: unknown check '{unknown[0]}' in expected_failures; known: {', '.join(contract)}"
        )
    return [Check(name, promise, target, expected.get(name)) for name, promise in contract.items()]


def check_strategy(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Result]:
    """Run all checks of a class and return their results; see :func:`checks_of`.

    Raises
    ------
    ContractError
        With all failures of the class.
    """
    results = [check.result() for check in checks_of(what, experiment, overrides, ray)]
    failed = [f"{result.name} ({result.words}): {result.text}" for result in results if result.status == "fail"]
    if failed:
        raise ContractError("\n".join([f"{what} does not keep the contract:", *failed]))
    return results
