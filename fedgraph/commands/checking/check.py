"""The checks of one class, with the exceptions that it declares, for the command and for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from unittest import SkipTest

from fedgraph.commands.checking.contract import CONTRACT, Promise
from fedgraph.commands.checking.data_sets import DATA_CONTRACT, CheckedData, is_data_set
from fedgraph.commands.checking.trials import Trials
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError


class Result(NamedTuple):
    """Result of a check: its name, what it checks, its status, and a remark or, of a failure, what to do.

    The status ``expected`` is for a failure that the class declares.
    """

    name: str
    words: str
    status: Literal["pass", "fail", "skipped", "expected"]
    text: str

    def __str__(self) -> str:
        return f"{self.name} ({self.words}): {self.text}"


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
            raise ContractError(f"{self.target.title}: {result}")
        if result.status != "pass":
            raise SkipTest(result.text)

    def result(self) -> Result:
        """Make the check."""
        words = self.promise.words
        try:
            text = self.promise.check(self.target)
        except SkipTest as reason:
            return Result(self.name, words, "skipped", str(reason))
        except Exception as error:  # of the class that is checked too
            text = str(error) if isinstance(error, FedgraphError) else f"{type(error).__name__}: {error}"
            if self.expected is not None:
                return Result(self.name, words, "expected", self.expected)
            return Result(self.name, words, "fail", text)
        if self.expected is None:
            return Result(self.name, words, "pass", text)
        text = f"expected_failures says that it fails ({self.expected}), but it passes: take '{self.name}' out"
        return Result(self.name, words, "fail", text)


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
    target: Trials | CheckedData
    if is_data_set(what):
        target, contract = CheckedData(what, experiment, overrides), DATA_CONTRACT
    else:
        target = Trials(what, experiment, overrides)
        contract = {name: each for name, each in CONTRACT.items() if each.of_clients or not target.is_client}
    expected = getattr(target.checked, "expected_failures", {})
    unknown = sorted(set(expected) - set(contract))
    if unknown:
        raise ExperimentError(
            f"{target.title}, declares expected_failures of '{unknown[0]}'; checks are {', '.join(contract)}"
        )
    checks = [Check(name, promise, target, expected.get(name)) for name, promise in contract.items()]
    return [check for check in checks if ray or check.name != "ray"]


def check_strategy(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = (), ray: bool = False
) -> list[Result]:
    """Make all checks of a class and return their results; parameters and errors as for :func:`checks_of`.

    Raises
    ------
    ContractError
        When the class fails any, with all that it fails.
    """
    results = [check.result() for check in checks_of(what, experiment, overrides, ray)]
    failed = [str(result) for result in results if result.status == "fail"]
    if failed:
        raise ContractError("\n".join([f"{what} does not keep the contract:", *failed]))
    return results
