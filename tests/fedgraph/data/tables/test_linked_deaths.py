"""Linked deaths: a small file as the real one is written, and the real one, whose items are held against each other."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

from fedgraph.data import open_source, parse_data
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.data.tables.linked_deaths import CAUSES, read_linked_deaths
from fedgraph.support.errors import DataError

# A row of the revised certificate; the header has lost the first letter of pay, precare, ...
ROW = {
    "mager": 25, "fagecomb": 31, "meduc": 6, "dmar": 1, "ubfacil": 1, "ay": 1, "wic": "Y", "riorlive": 1,
    "riordead": 0, "riorterm": 2, "recare": 3, "revis": 11, "cig_0": 20, "cig_1": 10, "cig_2": 5, "cig_3": 0,
    "mhtr": 64, "wgt_r": 150, "dwgt_r": 181, "urf_diab": 2, "urf_chype": 2, "urf_phype": 1, "urf_ehype": 2,
    "uob_indu": 2, "me_pres": 2, "me_rout": 4, "mm_mtr": "N", "mm_plac": "N", "mm_rupt": "N", "mm_uhyst": "N",
    "mm_aicu": "N", "mtran": "Y", "sex": "F", "dplural": 2, "combgest": 29, "brthwgt": "0911", "apgar5": "05",
    "ab_aven1": "Y", "ab_aven6": "N", "ab_nicu": "Y", "ab_surf": "N", "ab_anti": "N", "ab_seiz": "N",
    "ca_cchd": "N", "uca_anen": 2, "uca_spina": 2, "uca_omph": 1, "uca_clip": 2, "uca_hern": 2, "uca_down": 2,
    "ilive": "N", "aged": "012", "ucodr130": "135", "ucod": "R95",
}  # fmt: skip


def write(path, rows, header=lambda name: name):
    """Rows as changes of ``ROW``, in a .csv or a .zip file."""
    every = [ROW | row for row in rows]
    text = "\n".join([",".join(map(header, ROW)), *(",".join(str(row[name]) for name in ROW) for row in every)]) + "\n"
    if path.suffix == ".csv":
        path.write_text(text)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("deaths.csv", text)
    return path


def test_items_by_name_and_in_words(tmp_path):
    table = read_linked_deaths(write(tmp_path / "deaths.zip", [{}, {"ucodr130": "089"}, {"ucodr130": "001"}]))
    first = {name: column[0].as_py() for name, column in table.columns.items()}
    assert first == {
        "mager": 25, "fagecomb": 31, "meduc": 6, "dmar": "married", "ubfacil": "hosp", "pay": "medicaid", "wic": "y",
        "priorlive": 1, "priordead": 0, "priorterm": 2, "precare": 3, "previs": 11, "cig_0": 20, "cig_1": 10,
        "cig_2": 5, "cig_3": 0, "m_ht_in": 64, "pwgt_r": 150, "dwgt_r": 181, "urf_diab": "n", "urf_chyper": "n",
        "urf_phyper": "y", "urf_eclam": "n", "uop_induc": "n", "me_pres": "breech", "me_rout": "cesarean",
        "mm_mtr": "n", "mm_plac": "n", "mm_rupt": "n", "mm_uhyst": "n", "mm_aicu": "n", "mtran": "y", "sex": "F",
        "dplural": 2, "combgest": 29, "dbwt": 911, "apgar5": 5, "ab_aven1": "y", "ab_aven6": "n", "ab_nicu": "y",
        "ab_surf": "n", "ab_anti": "n", "ab_seiz": "n", "ca_cchd": "n", "uca_anen": "n", "uca_spina": "n",
        "uca_omph": "y", "uca_clip": "n", "uca_hern": "n", "uca_down": "n", "ilive": "n", "aged": 12,
        "cause": "sudden infant death syndrome",
    }  # fmt: skip
    assert table.column("cause").to_pylist()[1:] == [CAUSES["089"], "other"]


def test_codes_for_unknown_and_codes_that_are_none_are_missing(tmp_path):
    wrong = {"brthwgt": "9999", "combgest": "99", "ay": 9, "me_rout": 7, "apgar5": "x", "sex": "1", "aged": "365"}
    table = read_linked_deaths(write(tmp_path / "deaths.csv", [wrong, {}]))
    for name in ("dbwt", "combgest", "pay", "me_rout", "apgar5", "sex", "aged"):
        assert table.column(name).is_null().to_pylist() == [True, False], name


def test_a_zero_of_the_old_certificate_is_no_number(tmp_path):
    old = {"wic": "0", "cig_0": 0, "recare": 0, "riorlive": 0}
    table = read_linked_deaths(write(tmp_path / "deaths.zip", [old, {"cig_0": 0, "recare": 0}]))
    assert [table.column(name).to_pylist() for name in ("cig_0", "precare", "priorlive")] == [
        [None, 0],
        [None, 0],
        [0, 1],
    ]


def test_a_header_that_is_whole(tmp_path):
    lost = {"ay", "riorlive", "riordead", "riorterm", "recare", "revis", "wgt_r"}
    whole = read_linked_deaths(write(tmp_path / "a.zip", [{}], lambda name: f"p{name}" if name in lost else name))
    assert whole.columns == read_linked_deaths(write(tmp_path / "b.zip", [{}])).columns


def test_files_of_no_use_are_named(tmp_path):
    with pytest.raises(DataError, match=r"missing\.zip: .*linkco2015usnum\.zip"):
        read_linked_deaths(tmp_path / "missing.zip")
    (tmp_path / "broken.zip").write_text("no archive")
    with pytest.raises(DataError, match=r"broken\.zip .*not a zip file"):
        read_linked_deaths(tmp_path / "broken.zip")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("guide.pdf", "")
    with pytest.raises(DataError, match=r"two\.zip .*guide.pdf"):
        read_linked_deaths(tmp_path / "two.zip")
    with pytest.raises(DataError, match="mager, sex"):
        read_linked_deaths(write(tmp_path / "a.csv", [{}], lambda name: "x" if name in ("mager", "sex") else name))


def test_clients_by_education(tmp_path):
    random = np.random.default_rng(0)
    rows = [{"meduc": random.integers(1, 9), "ay": random.integers(1, 4), "wic": "YN"[n % 2]} for n in range(2000)]
    write(tmp_path / "deaths.csv", rows)
    segments = {"medicaid": {"pay": ["medicaid", "self-pay"]}, "college": {"meduc": [5, 6, 7, 8]}}
    tables = {"set": "linked-deaths", "path": "deaths.zip", "segments": segments, "public-share": 0.5}
    # The .csv file takes the place of the .zip file where only it is there.
    source = client_table_source(open_source(parse_data(tables), tmp_path), "fedngm")
    college = [pc.greater_equal(source.load_table(name).table.column("meduc"), 5) for name in source.client_names()]
    public = pc.greater_equal(source.public_table().column("meduc"), 5)
    medicaid, own, everybody = (np.mean(part.to_numpy(zero_copy_only=False)) for part in (*college, public))
    assert everybody == pytest.approx(0.5, abs=0.05)
    assert medicaid + 0.1 < everybody < own - 0.1
    assert source.describe() == "deaths.zip, 2,000 rows, 2 clients by segments, 4 times as often, 1,000 rows public"


# ---- the real file --------------------------------------------------------------------------------------------------

REAL = Path(os.environ.get("FEDGRAPH_DATA", "")) / "cdc-infant" / "linkco2015usnum.zip"


@pytest.fixture(scope="module")
def raw():
    """The file as it stands: every column as text."""
    if not REAL.is_file():
        pytest.skip("no linked deaths in the data folder")
    with zipfile.ZipFile(REAL) as archive:
        content = archive.read("linkco2015usnum.csv")
    names = content.partition(b"\n")[0].decode().strip().split(",")
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    table = pyarrow.csv.read_csv(pa.BufferReader(content), convert_options=options)
    return {name: np.array(table[name].to_pylist()) for name in names}


@pytest.fixture(scope="module")
def items(raw):
    """Our table, numbers as float64 with NaN where missing, words as objects."""
    table = read_linked_deaths(REAL)
    return {
        name: table.numbers(name) if pa.types.is_integer(column.type) else np.array(column.to_pylist(), dtype=object)
        for name, column in table.columns.items()
    }


def recode(values, *limits):
    """1 below the first limit, 2 from there to below the second, and so on."""
    return np.searchsorted(limits, values, side="right") + 1


def test_recodes_of_the_file_agree(raw, items):
    def number(name):
        return np.array([float(text) if text.replace(".", "").isdigit() else np.nan for text in raw[name]])

    every = np.ones(len(items["mager"]), dtype=bool)
    checks = {
        "mager": (recode(items["mager"], 15, 20, 25, 30, 35, 40, 45, 50), number("mager9"), every),
        "aged": (recode(items["aged"], 1, 7, 28), recode(number("ager5"), 3, 4, 5), every),
        "combgest": (
            recode(items["combgest"], 20, 28, 32, 34, 37, 39, 40, 41, 42), number("estrec10"), number("estrec10") < 99,
        ),
        "dbwt": (recode(items["dbwt"], 1500, 2500), number("bwtr4"), number("bwtr4") < 4),
        "apgar5": (recode(items["apgar5"], 4, 7, 9), number("apgar5r"), number("apgar5r") < 5),
        "precare": (
            np.where(items["precare"] == 0, 4, recode(items["precare"], 4, 7)), number("recare5"),
            (number("recare5") > 0) & (number("recare5") < 5),
        ),
        "priorlive": (items["priorlive"] + items["priordead"] + 1, number("lbo_rec"), number("lbo_rec") < 8),
        "dwgt_r": (
            items["dwgt_r"] - items["pwgt_r"], number("wtgain"), (number("wtgain") > 0) & (number("wtgain") < 98),
        ),
        "fagecomb": (
            recode(items["fagecomb"], 15, 20, 25, 30, 35, 40, 45, 50, 55), number("fage11"), number("fage11") < 11,
        ),
        "previs": (1 + np.ceil(items["previs"] / 2), number("revis_rec"), number("revis_rec") < 11),
        "priorterm": (
            items["priorlive"] + items["priordead"] + items["priorterm"] + 1, number("tbo_rec"), number("tbo_rec") < 8,
        ),
        **{
            f"cig_{when}": (
                recode(items[f"cig_{when}"], 1, 6, 11, 21, 41), number(f"cig{when}_r") + 1, number(f"cig{when}_r") < 6,
            )
            for when in range(4)
        },
    }  # fmt: skip
    for name, (ours, theirs, known) in checks.items():
        known = known & np.isfinite(items[name])
        assert np.mean(np.asarray(ours)[known] == theirs[known]) > 0.99, name
        assert known.mean() > (0.6 if name in ("dwgt_r", "fagecomb") else 0.85), name
    height, weight, index = items["m_ht_in"], items["pwgt_r"], number("bmi")
    known = np.isfinite(height) & np.isfinite(weight) & (index < 99)
    assert np.mean(np.abs(703 * weight / height**2 - index)[known] < 0.1) > 0.99


def test_words_of_the_file_agree(raw, items):
    def told(name, **words):
        return np.array([words.get(f"_{text}") for text in raw[name]], dtype=object)

    def any_of(*names):
        """Whether one of several findings is there, of the file's or of our columns."""
        found = [np.isin(raw[name], ["Y", "C", "P"]) if name in raw else items[name] == "y" for name in names]
        return np.where(np.any(found, axis=0), "y", "n")

    yes_no = {"_Y": "y", "_N": "n"}
    caesarean = np.where(items["me_rout"] == "cesarean", "y", "n")
    payer = np.select([items["pay"] == name for name in ("medicaid", "private", "self-pay")], [1, 2, 3], 4)
    smoked = np.where(sum(items[f"cig_{when}"] for when in range(1, 4)) > 0, "y", "n")
    checks = {
        "me_rout": (caesarean, told("dmeth_rec", _1="n", _2="y")),
        "me_pres": (np.where(items["me_pres"] == "cephalic", "n", "y"), told("uld_bree", _1="y", _2="n")),
        "pay": (payer, told("ay_rec", _1=1, _2=2, _3=3, _4=4)),
        "cig_1": (smoked, told("cig_rec", **yes_no)),
        "uca_anen": (items["uca_anen"], told("ca_anen", **yes_no)),
        "uca_spina": (items["uca_spina"], told("ca_mnsb", **yes_no)),
        "uca_hern": (items["uca_hern"], told("ca_cdh", **yes_no)),
        "uca_down": (items["uca_down"], told("ca_down", _N="n", _C="y", _P="y")),
        "uca_omph": (any_of("ca_omph", "ca_gast"), items["uca_omph"]),
        "uca_clip": (any_of("ca_cleft", "ca_clpal"), items["uca_clip"]),
        "urf_diab": (any_of("rf_pdiab", "rf_gdiab"), items["urf_diab"]),
        "mm_mtr": (any_of(*(n for n in items if n.startswith("mm_"))), told("no_mmorb", _0="y", _1="n")),
        "ab_nicu": (any_of(*(n for n in items if n.startswith("ab_"))), told("no_abnorm", _0="y", _1="n")),
        "ca_cchd": (any_of(*(n for n in raw if n.startswith("ca_"))), told("no_congen", _0="y", _1="n")),
        "ubfacil": (np.where(items["ubfacil"] == "hosp", "y", "n"), told("bfacil3", _1="y", _2="n")),
        "dmar": (items["dmar"], told("mar_p", _X="married", _Y="unmarried", _N="unmarried")),
        "dplural": (
            np.where(items["dplural"] > 1, "y", "n"),
            told("setorder_r", _9="n", _1="y", _2="y", _3="y", _4="y"),
        ),
        "uop_induc": (items["uop_induc"], told("ld_indl", **yes_no)),
        "urf_chyper": (items["urf_chyper"], told("rf_phype", **yes_no)),
        "urf_phyper": (items["urf_phyper"], told("rf_ghype", **yes_no)),
        "urf_eclam": (items["urf_eclam"], told("rf_ehype", **yes_no)),
    }
    for name, (ours, theirs) in checks.items():
        known = np.array([mine is not None and mine == mine for mine in items[name]]) & (theirs != None)  # noqa: E711
        assert known.mean() > 0.9, name
        assert np.mean(ours[known] == theirs[known]) > 0.99, name
        assert len(set(ours[known])) > 1, name


def test_items_without_a_counterpart_are_plausible(items):
    """Education, benefits, sex, transfer, alive at report: no other column says the same."""
    medicaid, private = (items["pay"] == name for name in ("medicaid", "private"))
    assert np.nanmean(items["meduc"][medicaid] >= 5) < 0.2 < 0.4 < np.nanmean(items["meduc"][private] >= 5)
    assert np.nanmax(items["meduc"][items["mager"] < 17]) < 5
    assert np.mean(items["wic"][private] == "y") < 0.25 < 0.5 < np.mean(items["wic"][medicaid] == "y")
    assert 0.54 < np.mean(items["sex"] == "M") < 0.57
    # Who was dead when the certificate was written died soon as a rule.
    assert np.mean(items["aged"][items["ilive"] == "n"] < 28) > 0.95
    assert np.mean(items["aged"][items["ilive"] == "y"] < 28) < 0.5
    assert 0.03 < np.mean(items["mtran"] == "y") < 0.07


def test_the_causes_are_the_commonest_and_mean_what_they_are_called(raw, items):
    codes, counts = np.unique(raw["ucodr130"], return_counts=True)
    assert set(codes[np.argsort(counts)[-10:]]) == set(CAUSES)
    assert np.mean(items["cause"] == "other") == pytest.approx(0.488, abs=0.001)
    of_disease = {
        "extremely low birth weight or extreme immaturity": {"P070", "P072"},
        "other low birth weight or preterm": {"P071", "P073"},
        "sudden infant death syndrome": {"R95"},
        "accidental suffocation in bed": {"W75"},
        "premature rupture of membranes": {"P011"},
    }
    for cause, codes in of_disease.items():
        assert set(raw["ucod"][items["cause"] == cause]) == codes
    for cause, chapter in (("malformations of heart", "Q2"), ("bacterial sepsis of newborn", "P36")):
        assert all(code.startswith(chapter) for code in raw["ucod"][items["cause"] == cause])
    limbs = {code[:3] for code in raw["ucod"][items["cause"] == "malformations of bones and limbs"]}
    assert limbs <= {f"Q{number}" for number in range(65, 86)}
