"""Files for ``fedgraph reproduce``: those of the project by name, any other by path."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedgraph.support.errors import ExperimentError, similar

Profile = Literal["small", "full"]


class TableFile(NamedTuple):
    """A file of a table or of a study.

    Attributes
    ----------
    name : str
        ``sfl-table1`` for a file of the project, else the stem of the file.
    path : Path
        The file.
    content : dict
        Its TOML, unchecked.
    """

    name: str
    content: dict[str, Any]
    path: Path

    @property
    def is_study(self) -> bool:
        """Whether the file names a function that makes a page, instead of experiments."""
        return "study" in self.content


def files_that_come_along() -> dict[str, Path]:
    """Return the project's tables and studies by name: ``sfl-table1`` is ``simulations/sfl/tables/table1.toml``."""
    found = sorted(Path(str(files("fedgraph.simulations"))).glob("*/tables/*.toml"))
    return {f"{path.parent.parent.name}-{path.stem}": path for path in found}


def read_file(name: str) -> TableFile:
    """Read a file by name or by path.

    Raises
    ------
    ExperimentError
        When there is no such file (naming those there are), or it is not TOML.
    """
    known = files_that_come_along()
    path = known.get(name, Path(name))
    if not path.is_file():
        raise ExperimentError(
            f"there is no table '{name}'; known tables: {', '.join(known)}{similar([name], list(known))}"
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not a TOML file: {error}") from None
    return TableFile(name if name in known else path.stem, content, path.resolve())
