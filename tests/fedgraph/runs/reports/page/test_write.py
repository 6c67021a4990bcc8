"""The report of runs as one HTML page."""

import gzip
import json
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import fedgraph
from fedgraph.runs.reports.page import Block, leave_report, write, write_page

OUTSIDE = re.compile(r'(?:src|href)\s*=\s*"(?!#)', re.IGNORECASE)


class Page(HTMLParser):
    """What a page shows: its text, tables as lists of rows, and its figures."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.tables, self.text, self.open, self.charts = [], "", [], []
        self.feed(self.source)
        self.figures = json.loads(re.search(r'id="figures">(.*?)</script>', self.source, re.DOTALL)[1])

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        found = dict(attributes)
        if "data-chart" in found:
            self.charts.append(int(found["data-chart"]))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if {"script", "style"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data.strip()

    def over(self, axis):
        """The traces of the figure with this axis upwards."""
        return next(
            each["data"] for each in self.figures if each["layout"]["yaxis"].get("title", {}).get("text") == axis
        )


@pytest.fixture
def ran(digits_tables, run_experiment):
    def run(method="sfl", report=False):
        tables = {**digits_tables, "experiment": {**digits_tables["experiment"], "method": method}}
        return fedgraph.load_run(run_experiment(tables, report=report).path)

    return run


def test_the_page_of_one_run(ran):
    run = ran("sfl-star")
    path = fedgraph.report(run)
    assert path == run.path / "report.html"
    page = Page(path)
    assert "6 clients, each measured on its own test data" in page.text
    results, clients, *_ = page.tables
    accuracy = run.summary["metrics"]["test"]["accuracy"]
    assert results[1] == [
        "accuracy", f"{accuracy['mean']:.3f} ± {accuracy['std']:.3f}", f"{accuracy['worst5']:.3f}",
        f"{accuracy['best5']:.3f}",
    ]  # fmt: skip
    assert clients[0] == ["client", "accuracy", "loss", "f1"]
    assert [row[0] for row in clients[1:]] == list(run.clients.index)
    assert [float(row[1]) for row in clients[1:]] == run.clients["test/accuracy"].round(3).tolist()
    assert "Every client answered every time" in page.text
    assert "shards = 2" in page.text
    assert "The client graph" in page.text
    assert "Learned by sfl-star" in page.text
    # All the charts there are, each of them once, but for the curves behind a menu.
    assert set(page.charts) < set(range(len(page.figures)))


def test_the_page_begins_with_time_and_command(ran):
    run = ran()
    file = run.path / "environment.json"
    about = json.loads(file.read_text())
    assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]", about["began"])
    for typed, shown in (
        (["/somewhere/bin/fedgraph", "run", "a b.toml"], "fedgraph run 'a b.toml'"),
        (["scripts/mine.py", "--fast"], "python mine.py --fast"),
        (["/lib/ipykernel_launcher.py", "-f", "x.json"], ""),
    ):
        file.write_text(json.dumps({**about, "began": "2026-01-02T03:04:05+00:00", "command": typed}))
        top = Page(fedgraph.report(run)).text.partition("Results on")[0]
        assert f"2026-01-02 03:04 {shown}".strip() in top
        assert "x.json" not in top


def test_the_owners_own_model_stands_beside_the_joint_one(patches_tables, run_experiment):
    run = fedgraph.load_run(run_experiment(patches_tables).path)
    page = Page(fedgraph.report(run))
    results, clients, *_ = page.tables
    assert results[0] == ["metric", "f3", "own model"]
    metrics = run.summary["metrics"]["test"]
    assert results[1][0] == "accuracy"
    for cell, name in zip(results[1][1:], ("accuracy", "accuracy-local"), strict=True):
        assert cell.startswith(f"{metrics[name]['mean']:.3f} ± {metrics[name]['std']:.3f}")
    assert not any("-local" in row[0] for row in results)
    assert clients[1][:3] == ["client", "f3", "own model"]
    assert [float(row[2]) for row in clients[2:]] == run.clients["test/accuracy-local"].round(3).tolist()


def test_a_range_that_is_not_known_is_not_shown(ran):
    run = ran()
    spread = {"mean": 0.5, "std": 0.1, "best5": None, "worst5": None}
    summary = {**run.summary, "metrics": {"test": {"rows": spread, "odd": {**spread, "mean": None, "std": None}}}}
    run.folder.write_summary(summary)
    source = fedgraph.report([run.path, ran("local")]).read_text()
    assert "- to -" not in source
    assert "- ± -" not in source


def test_single_features_are_a_table_by_themselves(ran):
    run = ran()
    names = ["mean-auc", "mean-aupr", "age-auc", "age-aupr", "ill-auc", "age-auc-local"]
    metrics = {name: {"mean": place / 10, "std": 0.0, "best5": 1.0, "worst5": 0.0} for place, name in enumerate(names)}
    run.folder.write_summary({**run.summary, "metrics": {"test": metrics}})
    results, features, *_ = Page(fedgraph.report(run.path)).tables
    assert [row[0] for row in results[1:]] == ["mean-auc", "mean-aupr"]
    assert features == [["feature", "auc", "aupr"], ["age", "0.2000.500", "0.300-"], ["ill", "0.400-", ""]]


def test_the_page_needs_nothing_from_elsewhere(ran):
    source = fedgraph.report(ran()).read_text()
    head, _, rest = source.partition('id="library">')
    packed, _, tail = rest.partition("</script>")
    assert b"plotly.js" in gzip.decompress(b64decode(packed))[:200]
    assert "https://" not in head + tail
    assert not OUTSIDE.search(head + tail)


def test_curves_are_means_and_the_middle_half_of_clients(ran):
    run = ran()
    page = Page(fedgraph.report(run))
    (points,) = page.over("test accuracy")
    each = run.client_metrics.query("split == 'test' and metric == 'accuracy'").pivot_table(
        index="round", columns="client", values="value"
    )
    assert points["x"] == each.index.tolist()
    assert np.allclose(points["y"], each.mean(axis=1))
    bars, mean = points["error_y"], each.mean(axis=1)
    assert np.allclose(bars["array"], each.quantile(0.75, axis=1) - mean)
    assert np.allclose(bars["arrayminus"], mean - each.quantile(0.25, axis=1))


def test_several_runs_are_compared(ran):
    runs = fedgraph.compare([ran("sfl"), ran("local")])
    path = fedgraph.report(runs)
    assert path == runs[0].path / "comparison.html"
    page = Page(path)
    results, clients, costs, *_ = page.tables
    assert results[0] == ["metric", "sfl", "local"]
    assert [row[0] for row in clients[1:]] == list(runs[0].clients.index)
    assert [float(row[2]) for row in clients[1:]] == runs[1].clients["test/accuracy"].round(3).tolist()
    assert ["rounds", "2", "2"] in costs
    assert [trace["name"] for trace in page.over("test accuracy")] == ["sfl", "local"]


def test_absent_clients_are_told_with_the_reason(ran):
    run = ran()
    line = {"phase": "training", "split": "train", "metrics": {}, "per_client": {}}
    for number in (1, 2):
        run.folder.append({**line, "round": number, "absent": {"client-3": f"no <reply> in round {number}"}})
    page = Page(fedgraph.report(run.path))
    assert ["client-3", "2", "no <reply> in round 2"] in page.tables[-1]
    assert "no <reply>" not in page.source


def test_names_do_not_become_markup(digits_tables, run_experiment):
    digits_tables["experiment"]["name"] = "bold-b"
    run = fedgraph.load_run(run_experiment(digits_tables).path)
    summary = {**run.summary, "data": "</script><b>x</b>"}
    run.folder.write_summary(summary)
    run = fedgraph.load_run(run.path)
    source = fedgraph.report(run).read_text()
    assert "<b>x</b>" not in source


def test_clients_are_drawn_where_they_are(ran):
    run = ran()
    run.folder.write_coordinates({name: (50.0 + number, 8.0) for number, name in enumerate(run.clients.index)})
    page = Page(fedgraph.report(run))
    points = next(
        trace
        for figure in page.figures
        for trace in figure["data"]
        if trace.get("hovertemplate", "").startswith("%{hovertext}")
    )
    assert points["y"] == [50.0 + number for number in range(6)]
    assert len({round(x, 9) for x in points["x"]}) == 1


def test_a_page_of_several_parts(ran, tmp_path):
    run = ran()
    compared = fedgraph.compare([run])
    blocks = [Block(compared, "First", "Why.", "fedgraph run x"), Block(compared, "Second")]
    page = Page(write_page("All of it", "What this is.", blocks, tmp_path / "deep" / "page.html"))
    assert "fedgraph run x" in page.text
    assert '<a href="#part-2">Second</a>' in page.source
    assert len(page.figures) == 2 * len(Page(fedgraph.report(run)).figures)


def test_a_report_that_fails_costs_no_results(ran, monkeypatch, caplog):
    run = ran(report=True)

    def fail(*given):
        raise OSError("disk full")

    monkeypatch.setattr(write, "report", fail)
    leave_report([run])
    assert "could not be written: disk full" in caplog.text


def test_a_damaged_file_leaves_out_its_part(patches_tables, run_experiment, caplog):
    run = fedgraph.load_run(run_experiment(patches_tables).path)
    assert "Alignment of the owners" in Page(fedgraph.report(run)).text
    (run.path / "alignment.npz").write_bytes(b"nonsense")
    assert "Alignment of the owners" not in Page(fedgraph.report(run)).text
    assert "a part of the report" in caplog.text


def test_flower_runs_leave_a_report(digits_tables, run_experiment):
    assert (run_experiment(digits_tables, report=True).path / "report.html").is_file()


def test_a_page_runs_its_own_scripts_alone_and_loads_nothing(ran, tmp_path):
    page = fedgraph.report(ran(), tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(maxsplit=1) for rule in unescape(policy).split("; "))
    assert rules["default-src"] == "'none'"
    assert "script-src" in rules
    assert not {"connect-src", "frame-src", "object-src"} & rules.keys()
    assert all("http" not in allowed and "*" not in allowed for allowed in rules.values())
    scripts = [page.rpartition("<script>")[2].partition("</script>")[0].encode()]
    scripts.append(gzip.decompress(b64decode(re.search(r'id="library">([^<]*)<', page)[1])))
    hashes = [f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in scripts]
    assert rules["script-src"].split() == hashes
    assert page.count("<script>") == 1
