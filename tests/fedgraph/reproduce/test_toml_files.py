from pathlib import Path

import pytest

from fedgraph.reproduce.toml_files import files_that_come_along, read_file
from fedgraph.support.errors import ExperimentError


def test_tables_and_studies_come_along():
    names = files_that_come_along()
    assert {"sfl-table1", "f3-theory", "f3-fig3", "f3-fig4"} <= set(names)
    assert {"sfl-table2", "sfl-table3", "sfl-table4", "sfl-fig3", "sfl-fig4"} <= set(names)


def test_by_name_and_by_path():
    found = read_file("f3-theory")
    assert (found.name, found.path.name, found.is_study) == ("f3-theory", "theory.toml", True)
    assert not read_file("sfl-table1").is_study
    Path("mine.toml").write_text('[study]\ntitle = "x"\n')
    found = read_file("mine.toml")
    assert (found.name, found.path, found.content) == ("mine", Path("mine.toml").resolve(), {"study": {"title": "x"}})


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ExperimentError, match="there is no table 'f3-theorie'; known tables: .*f3-theory.*sfl-table1"):
        read_file("f3-theorie")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ExperimentError, match="bad.toml is not a TOML file"):
        read_file("bad.toml")
