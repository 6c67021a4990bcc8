"""The checks of one class, with the exceptions that it declares, for the command and for tests."""

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
    """What came of a check: its name, what it checks, and a remark; of a failure, what went wrong and what to do.

    The status ``expected`` is for a failure that the class declares.
    """

    name: str
    words: str
    status: Status
    text: str


@dataclass(frozen=True)
class Check:
    """One promise of one class, and the reason for which the class is expected not to keep it, if any.

    Called, it does nothing for a class that keeps the promise, raises ContractError for one that does not, and
    ``unittest.SkipTest``, which pytest knows, where it does not apply or a failure is expected.
    """

    name: str
    promise: Promise
    target: Trials | CheckedData
    expected: str | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Make the check; see the class."""
        result = self.result()
        if result.status == "fail":
            raise ContractError(f"{self.target.title}: {self.name} ({result.words}): {result.text}")
        if result.status != "pass":
            raise SkipTest(result.text)

    def result(self) -> Result:
        """Make the check."""
        status: Status = "pass"
        try:
            text = self.promise.check(self.target)
        except SkipTest as reason:
            return Result(self.name, self.promise.words, "skipped", str(reason))
        except FedgraphError as error:
            status, text = "fail", str(error)
        except Exception as error:  # of the class that is checked
            status, text = "fail", f"{type(error).__name__}: {error}"
        if self.expected is not None and status == "fail":
            status, text = "expected", self.expected
        elif self.expected is not None:
            text = f"expected_failures says that it fails ({self.expected}), but it passes: take '{self.name}' out"
            status = "fail"
        return Result(self.name, self.promise.words, status, text)


def checks_of(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Check]:
    """Return the checks of a class; nothing is run yet.

    Parameters
    ----------
    what : str or type
        Dotted path ``package.module:Class`` of a strategy, client class or data set, or the class; or the short name of
        a built-in method.
    experiment : str or Path, optional
        Experiment file, where the class does not run on handwritten digits.
    overrides : iterable of str
        Values such as ``train.learning-rate=0.05``; keys that a data set needs, such as ``data.path=wards.csv``.
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
            f"{target.title}, declares expected_failures of '{unknown[0]}'; checks are {', '.join(contract)}"
        )
    return [Check(name, promise, target, expected.get(name)) for name, promise in contract.items()]


def check_strategy(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Result]:
    """Make all checks of a class and return what came of each; parameters and errors as for :func:`checks_of`.

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
