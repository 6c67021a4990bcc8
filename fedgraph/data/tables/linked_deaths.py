"""Deaths of infants born in one year in the United States, and their causes.

The numerator of the linked birth and infant death file of 2015 (National Center for Health Statistics), as the National
Bureau of Economic Research publishes it as CSV: a row per death, with the items of the birth certificate. Chajewska,
Shrivastava: Federated Learning with Neural Graphical Models, section 3.1, use both those who died and those who lived.

The file's header lacks the first letter of names that begin with a p (``ay`` is ``pay``), and some rows are shifted in
some columns. So an item is used only if columns with redundant information agree with it in nearly all rows
(tests/fedgraph/data/tables/test_linked_deaths.py lists them; ``meduc``, ``wic``, ``sex``, ``mtran`` and ``ilive`` have
no counterpart and are plausible), and invalid codes are missing. Race and origin of the parents are left out: their
columns contradict each other.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fedgraph.data.columns.table import Table
from fedgraph.data.tables.divided import DividedTableSettings, DividedTableSource
from fedgraph.support.catalogue import CatalogueEntry, DataFile
from fedgraph.support.errors import DataError

_FOLDER = Path("cdc-infant")
_PUBLISHED = "https://github.com/ythuang26/infant_mortalitypred/blob/f3f4363bf57e583f1a567139afb3ef49b78e5074/linkco2015usnum.zip"

LINKED_DEATHS: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="linked-deaths",
        title="Linked births and infant deaths, United States 2015, the deaths",
        licence="public domain (US government); for statistics only, never to identify a person",
        size="23,357 deaths, 53 columns",
        alternatives=(
            (
                DataFile(
                    _FOLDER / "linkco2015usnum.zip",
                    _PUBLISHED,
                    sha256="c54645e4ddb99bda037b7872da81d7bd4c269817994d4b6b09746396de83196b",
                    size_bytes=2_357_450,
                ),
            ),
            (DataFile(_FOLDER / "linkco2015usnum.csv", ""),),
        ),
        notes="The survivors are not in it. [data] path names another place.",
    ),
)

CAUSES: Mapping[str, str] = {
    "089": "extremely low birth weight or extreme immaturity",
    "135": "sudden infant death syndrome",
    "117": "all other perinatal conditions",
    "136": "other ill-defined signs and findings",
    "123": "malformations of heart",
    "146": "accidental suffocation in bed",
    "090": "other low birth weight or preterm",
    "076": "premature rupture of membranes",
    "106": "bacterial sepsis of newborn",
    "128": "malformations of bones and limbs",
}
"""The ten most common of the 130 causes of infant death among the deaths of 2015, with shortened descriptions."""

OTHER = "other"
"""Any of the other causes."""

Words = Mapping[str, str]
_YES_NO: Words = {"Y": "y", "N": "n"}
_ONE_TWO: Words = {"1": "y", "2": "n"}


@dataclass(frozen=True)
class _Item:
    """A column of the file.

    codes   : the text for each valid code; the lowest and the highest if it is a number.
    revised : only on the certificate as revised in 2003; rows of the old one have a meaningless 0.
    column  : its name in the file, if different.
    """

    codes: Words | tuple[int, int]
    revised: bool = True
    column: str = ""


def _every(names: str, codes: Words | tuple[int, int], revised: bool = True) -> dict[str, _Item]:
    return {name: _Item(codes, revised) for name in names.split()}


_ITEMS: dict[str, _Item] = {
    "mager": _Item((12, 50), revised=False),
    "fagecomb": _Item((12, 98), revised=False),
    "meduc": _Item((1, 8)),
    "dmar": _Item({"1": "married", "2": "unmarried"}, revised=False),
    "ubfacil": _Item({"1": "hosp", "2": "center", "3": "clinic", "4": "residence", "5": "other"}, revised=False),
    "pay": _Item(
        {"1": "medicaid", "2": "private", "3": "self-pay", "4": "IHS", "5": "military", "6": "other_gov", "8": "other"}
    ),
    "wic": _Item(_YES_NO),
    **_every("priorlive priordead priorterm", (0, 30), revised=False),
    "precare": _Item((0, 10)),
    "previs": _Item((0, 98)),
    **_every("cig_0 cig_1 cig_2 cig_3", (0, 98)),
    "m_ht_in": _Item((30, 78), column="mhtr"),
    "pwgt_r": _Item((75, 375)),
    "dwgt_r": _Item((100, 400)),
    "urf_diab": _Item(_ONE_TWO, revised=False),
    "urf_chyper": _Item(_ONE_TWO, revised=False, column="urf_chype"),
    "urf_phyper": _Item(_ONE_TWO, revised=False, column="urf_phype"),
    "urf_eclam": _Item(_ONE_TWO, revised=False, column="urf_ehype"),
    "uop_induc": _Item(_ONE_TWO, revised=False, column="uob_indu"),
    "me_pres": _Item({"1": "cephalic", "2": "breech", "3": "other"}),
    "me_rout": _Item({"1": "spontaneous", "2": "forceps", "3": "vacuum", "4": "cesarean"}),
    **_every("mm_mtr mm_plac mm_rupt mm_uhyst mm_aicu mtran", _YES_NO),
    "sex": _Item({"M": "M", "F": "F"}, revised=False),
    "dplural": _Item((1, 5), revised=False),
    "combgest": _Item((17, 47), revised=False),
    "dbwt": _Item((227, 8165), revised=False, column="brthwgt"),
    "apgar5": _Item((0, 10), revised=False),
    **_every("ab_aven1 ab_aven6 ab_nicu ab_surf ab_anti ab_seiz ca_cchd", _YES_NO),
    **_every("uca_anen uca_spina uca_omph uca_clip uca_hern uca_down", _ONE_TWO, revised=False),
    "ilive": _Item(_YES_NO),
    "aged": _Item((0, 364), revised=False),
}
"""By name in our table, which follows the file of births of 2014."""


class LinkedDeathsSettings(DividedTableSettings):
    """The ``[data]`` table with ``set = "linked-deaths"``: infants who died, of births in the United States in 2015.

    Columns: items of the birth certificate, ``aged`` (days of life) and ``cause`` (of death: one of the ten most common
    of 130 causes, or ``other``). Survivors are not included.

    Attributes
    ----------
    path : the .zip or .csv file, absolute or relative to the data folder.
    """

    set: Literal["linked-deaths"] = "linked-deaths"
    path: str = str(_FOLDER / "linkco2015usnum.zip")


class LinkedDeathsSource(DividedTableSource):
    """The deaths, divided among clients."""

    settings: LinkedDeathsSettings

    @cached_property
    def _table(self) -> Table:
        path = self.data_dir / Path(self.settings.path).expanduser()
        if not path.is_file() and path.with_suffix(".csv").is_file():
            path = path.with_suffix(".csv")
        return read_linked_deaths(path)


def read_linked_deaths(path: Path) -> Table:
    """Read the file, .zip or .csv, as a table; the last one is cached. Raises DataError naming the file."""
    if not path.is_file():
        raise DataError(
            f"there is no file {path.absolute()}: put linkco2015usnum.zip there (published at {_PUBLISHED}), or set "
            "[data] path, which is absolute or relative to the data folder (node config key data-dir, or FEDGRAPH_DATA)"
        )
    return _read(path.absolute(), path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, _changed: int) -> Table:
    try:
        texts = _texts(path)
    except (OSError, UnicodeDecodeError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a file of linked deaths: {error}", quoted=str(error)) from None
    revised = pc.is_in(texts["wic"], value_set=pa.array(["Y", "N", "U"]))
    columns = {}
    for name, item in _ITEMS.items():
        text = texts[item.column or name]
        if item.revised:
            text = pc.if_else(revised, text, pa.scalar(None, pa.string()))
        columns[name] = _whole(text, *item.codes) if isinstance(item.codes, tuple) else _worded(text, item.codes)
    cause = pc.fill_null(_worded(texts["ucodr130"], CAUSES), OTHER)
    columns["cause"] = pc.if_else(pc.equal(texts["ucodr130"], ""), pa.scalar(None, pa.string()), cause)
    return Table(columns, str(path))


def _texts(path: Path) -> dict[str, pa.Array]:
    """Return the needed columns, as in the file."""
    wanted = [*(item.column or name for name, item in _ITEMS.items()), "ucodr130"]
    with ExitStack() as opened:
        if path.suffix == ".zip":
            archive = opened.enter_context(zipfile.ZipFile(path))
            inside = [name for name in archive.namelist() if name.endswith(".csv")]
            if len(inside) != 1:
                raise DataError(f"{path} should hold one .csv file; it holds {', '.join(archive.namelist()) or 'none'}")
            content = archive.read(inside[0])
        else:
            content = path.read_bytes()
    header = content.partition(b"\n")[0].decode("utf-8-sig").strip().split(",")
    # The column pay is called ay; in a file with an intact header it is called pay.
    found = {name: name if name in header else name.removeprefix("p") for name in wanted}
    lacking = [name for name, written in found.items() if written not in header]
    if lacking:
        raise DataError(
            f"{path} has no column {', '.join(lacking)}: it must be a file of linked deaths of 2014 or later"
        )
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=list(found.values()),
            column_types=dict.fromkeys(found.values(), pa.string()),
            strings_can_be_null=False,
        ),
    )
    return {name: pc.utf8_trim_whitespace(table[written].combine_chunks()) for name, written in found.items()}


def _whole(text: pa.Array, low: int, high: int) -> pa.Array:
    """Convert to whole numbers; null where it is outside ``low`` to ``high``."""
    digits = pc.if_else(pc.match_substring_regex(text, "^[0-9]{1,9}$"), text, pa.scalar(None, pa.string()))
    number = pc.cast(digits, pa.int64())
    valid = pc.and_(pc.greater_equal(number, low), pc.less_equal(number, high))
    return pc.if_else(valid, number, pa.scalar(None, pa.int64()))


def _worded(text: pa.Array, words: Words) -> pa.Array:
    """Replace codes by their meaning; null for unknown codes."""
    return pa.array(list(words.values())).take(pc.index_in(text, value_set=pa.array(list(words))))
