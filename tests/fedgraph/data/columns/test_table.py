"""Rows of tables are known by their content in the file."""

import gzip

import numpy as np
import pandas as pd
import pytest

from fedgraph.data.columns.options import FileSettings
from fedgraph.data.columns.table_files import from_frame

TEXT = 'key,age,note\na,"1,5",x;y\nb,2,NA\nb,2,NA\nc,,"two\nlines"\nd,4,é\n'


def written(path, text=TEXT, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "settings", [{"missing": ["2", "b"]}, {"default_missing": False}, {"thousands": ","}, {"delimiter": ","}]
)
def test_identities_do_not_depend_on_how_a_file_is_read(tmp_path, settings):
    path = written(tmp_path / "a.csv")
    plain, other = FileSettings().read(path), FileSettings(**settings).read(path)
    assert np.array_equal(other.identities, plain.identities)
    assert len(set(plain.identities.tolist())) == 5, "equal rows are numbered"


def test_nor_on_what_separates_its_cells(tmp_path):
    path = written(tmp_path / "a.csv", "key;age,note\na;1,x\nb;2,y\n")
    found = [FileSettings(delimiter=each).read(path).identities.tolist() for each in (",", ";", "|")]
    assert found[0] == found[1] == found[2]
    named = FileSettings(columns=("a", "b")).read(path).identities.tolist()
    assert named[1:] == found[0], "a header is a row where columns have other names"


def test_rows_keep_their_identity_in_parts_and_other_files(tmp_path):
    whole = FileSettings().read(written(tmp_path / "a.csv"))
    part = whole.part(np.array([4, 1])).with_columns({"age": whole.part(np.array([4, 1])).columns["age"]})
    assert part.identities.tolist() == whole.identities[[4, 1]].tolist()
    assert part.part(np.array([1])).identities.tolist() == whole.identities[[1]].tolist()
    more = FileSettings().read(written(tmp_path / "b.csv", TEXT + "e,5,z\n", "utf-16"))
    assert more.identities[:5].tolist() == whole.identities.tolist()
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(TEXT.replace("4", "5").encode()))
    changed = FileSettings().read(tmp_path / "c.csv.gz").identities
    assert (changed == whole.identities).tolist() == [True] * 4 + [False]


def test_frames_and_parquet_have_identities_too(tmp_path):
    frame = pd.DataFrame(
        {"age": [1.5, 2.0, 2.0], "scan": [[1.0, 2.0], [3.0], [3.0]], "time": pd.to_datetime(["2020"] * 3)}
    )
    found = from_frame(frame).identities
    assert len(set(found.tolist())) == 3
    frame.to_parquet(tmp_path / "a.parquet")
    read = FileSettings().read(tmp_path / "a.parquet")
    assert len(set(read.identities.tolist())) == 3
    assert read.identities.tolist() == FileSettings(missing=("2",)).read(tmp_path / "a.parquet").identities.tolist()
