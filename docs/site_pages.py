"""What Sphinx does not do by itself for these pages.

- A page that says ``This page is [PATH](...).`` is that file of the repository, such as a page of results.
- Links between files of the repository become links between pages, where these files are pages.
- ``<!-- keys TABLE -->`` and ``<!-- baselines -->`` are replaced by tables made from settings classes and the methods.
- Settings classes are documented by a table of their keys.
- MathJax, which shows equations, comes along with the pages.
- Links within the pages that lead nowhere are warnings.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from sphinx.application import Sphinx
from sphinx.util import logging

from fedgraph.commands.keys import fields, inner_tables, meanings, setting_tables
from fedgraph.experiment import built_ins
from fedgraph.support.settings import Settings

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
FOUR_PAPERS = ("sfl", "f3", "ipa", "fedngm")

_STANDS_FOR = re.compile(r"This page is \[[^\]]*\]\(([^)]+)\)\.")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_QUOTED = re.compile(r'("[^"]*")')
_KEYS = re.compile(r"<!-- keys ([\w.-]+) -->")
_BASELINES = "<!-- baselines -->"
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

log = logging.getLogger(__name__)


def pages_of_files() -> dict[Path, str]:
    """Return the page of every file of the repository that is one, such as ``results/sfl``."""
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        if "_build" in page.relative_to(DOCS).parts:
            continue
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        found[page] = name
        other = _STANDS_FOR.search(page.read_text(encoding="utf-8"))
        if other is not None:
            found[(page.parent / other[1]).resolve()] = name
    return found


def page_source(name: str, text: str) -> str:
    """Return the Markdown of a page as Sphinx is to read it."""
    path = DOCS / f"{name}.md"
    other = _STANDS_FOR.search(text)
    if other is not None:
        path = (path.parent / other[1]).resolve()
        text = path.read_text(encoding="utf-8")
    text = _KEYS.sub(lambda found: keys_table(found[1]), text).replace(_BASELINES, baselines_table())
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        if not fence[0].startswith("```{"):
            parts += [_prose(text[last : fence.start()], path, name), fence[0]]
            last = fence.end()
    return "".join([*parts, _prose(text[last:], path, name)])


def _prose(text: str, path: Path, name: str) -> str:
    text = _COMMENT.sub("", text).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return _LINK.sub(lambda link: link[1] + _target(link[2], path, name) + link[3], text)


def _target(link: str, path: Path, name: str) -> str:
    """Return a link of the file at ``path`` as one of the page ``name``."""
    if re.match(r"\w+:|#|/", link):
        return link
    to, anchor = urldefrag(link)
    file = (path.parent / to).resolve()
    if file == REPOSITORY / "README.md":
        file = DOCS / "index.md"
    if file.is_dir() and (file / "README.md").exists():
        file /= "README.md"
    page = pages_of_files().get(file)
    if page is not None:
        file = DOCS / f"{page}.md"
    relative = os.path.relpath(file, (DOCS / name).parent)
    return f"{relative}#{anchor}" if anchor else relative


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Escape what would be markup outside of literals, in Markdown and in reStructuredText."""
    parts = re.split(r"(`+[^`]+`+)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<_])", r"\\\1", part) for part in parts)


def keys_table(name: str) -> str:
    """Return the keys of a table of an experiment as a table in Markdown."""
    heading, kind = setting_tables()[name]
    said = meanings(kind)
    inner = inner_tables(kind)
    lines = [f"| key of `{heading}` | meaning |", "|---|---|"]
    for key, default, told in fields(kind, name):
        assigned = f"{key} = {default}" if default else key
        typed = "a table" if key in inner else _QUOTED.sub(r"`\1`", told)
        lines.append(f"| `{assigned}`<br>{typed} | {_cell(said.get(key, ''))} |")
    return "\n".join(lines)


def baselines_table() -> str:
    """Return the methods that are not those of the four papers, as a table in Markdown."""
    lines = ["| method | what it is | needs | paper |", "|---|---|---|---|"]
    method: Any
    for name, method in sorted(built_ins().items()):
        if name.split("-")[0] in FOUR_PAPERS:
            continue
        paper = f"[link]({method.paper})" if method.paper else ""
        lines.append(f"| `{name}` | {_cell(method.title)} | {_cell(method.needs)} | {paper} |")
    return "\n".join(lines)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    if Path(app.env.doc2path(name)).suffix == ".md":
        source[0] = page_source(name, source[0])


def _always_read(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages made from other files, or from the code, are read in every build."""
    made = [name for path, name in pages_of_files().items() if DOCS not in path.parents]
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if _BASELINES in text or _KEYS.search(text):
            made.append(page.relative_to(DOCS).with_suffix("").as_posix())
    return made


def _settings(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Document the keys of a settings class: their names, types, defaults and meanings."""
    if what != "class" or not (isinstance(item, type) and issubclass(item, Settings)) or item is Settings:
        return
    text = "\n".join(lines)
    head = re.split(r"\n\s*:(?:ivar|vartype|attribute)|\n\s*\.\. attribute::", text)[0].splitlines()
    said = meanings(item)
    lines[:] = [line for line in head if not line.startswith(".. attribute::")]
    for key, default, typed in fields(item):
        assigned = f"{key} = {default}" if default else key
        told = _QUOTED.sub(r"``\1``", typed)
        lines += ["", f"``{assigned}`` : {told}", f"    {_plain(said.get(key, '')) or '..'}"]
    lines.append("")


def _signature(
    app: Sphinx, what: str, name: str, item: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    return ("", None) if what == "class" and isinstance(item, type) and issubclass(item, Settings) else None


def _skipped(app: Sphinx, what: str, name: str, item: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to estimators, which refers to its own glossary."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def _copy_mathjax(site: Path) -> None:
    """Copy the part of MathJax that the pages load."""
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    assert package is not None
    assert package.origin is not None
    source, target = Path(package.origin).parent / "static" / "mathjax", site / "_static" / "mathjax"
    fonts = Path("output") / "chtml" / "fonts" / "woff-v2"
    shutil.copytree(source / fonts, target / fonts, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml.js", target)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key == "id" and value:
                self.anchors.add(value)
            elif key in ("href", "src") and value and tag != "link":
                self.links.add(value)


def broken_links(site: Path) -> Iterator[tuple[str, str]]:
    """Yield page and target of every link within built pages that leads nowhere."""
    pages = {}
    for path in site.rglob("*.html"):
        if "_static" in path.relative_to(site).parts:
            continue
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            to, anchor = urldefrag(link)
            if re.match(r"\w+:|//", link) or link in ("#", ""):
                continue
            to = unquote(to.partition("?")[0])
            file = (path.parent / to).resolve() if to else path
            reached = pages.get(file)
            if not file.is_file() or (anchor and reached is not None and unquote(anchor) not in reached.anchors):
                yield path.relative_to(site.resolve()).as_posix(), link


def _finished(app: Sphinx, error: Exception | None) -> None:
    shutil.rmtree(DOCS / "gallery" / "runs", ignore_errors=True)
    if error is None and app.builder.name == "html":
        _copy_mathjax(Path(app.outdir))
        for page, link in broken_links(Path(app.outdir)):
            log.warning("%s: a link leads nowhere: %s", page, link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all of it to Sphinx."""
    app.connect("source-read", _read)
    app.connect("env-get-outdated", _always_read)
    app.connect("autodoc-process-docstring", _settings, priority=900)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
