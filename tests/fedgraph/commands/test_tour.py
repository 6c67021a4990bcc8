"""The tour: every method once."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgraph.commands.cli import app


@pytest.fixture
def full_tour(leave_no_trace, tmp_path):
    return lambda *parts: CliRunner().invoke(app, ["tour", *parts, "--out", str(tmp_path / "tour")])


@pytest.fixture
def tour(full_tour, short_tour):
    def call(*parts):
        with short_tour():
            return full_tour(*parts)

    return call


@pytest.mark.parametrize("part", ["forecast", "sfl", "f3", "ipa", "fedngm"])
def test_a_part(tour, tmp_path, part):
    result = tour(part)
    assert result.exit_code == 0, result.output
    assert re.search(r"\d+\.\d+ (mph|%)", result.output)
    assert "fedgraph run " in result.output
    page = (tmp_path / "tour" / f"{part}.html").read_text()
    assert 'class="chart"' in page
    assert f"{(tmp_path / 'tour' / f'{part}.html')}" in result.output


def test_beside_alignment_stands_what_averaging_has_and_costs(tour):
    """One model for all is what a user would try first."""
    said = tour("ipa").output
    assert re.search(r"one model for all \(FedAvg\) +\d+\.\d %", said)
    assert re.search(r"drift corrected \(FedDyn\) +\d+\.\d %", said)
    aligning, averaging = map(float, re.search(r"sent by each peer.*?([\d.]+) MB / ([\d.]+) MB", said).groups())
    assert aligning >= averaging


def test_a_part_that_there_is_not(tour):
    result = tour("sfi")
    assert result.exit_code == 1
    assert "unknown part 'sfi' of the tour; known: forecast, sfl, f3, ipa, fedngm" in result.output


def readme_of_the_tour():
    """What the README shows of the tour, label and value; models are another processor's to a point or so."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    block = re.search(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]
    rows = re.findall(r"^ (.+?) {2,}([\d.]+) (?:%|mph)$", block, re.MULTILINE)
    return [(label, float(value)) for label, value in rows]


@pytest.mark.slow
def test_every_method_earns_its_place(full_tour, tmp_path):
    result = full_tour()
    assert result.exit_code == 0, result.output
    numbers = [float(found) for found in re.findall(r"(\d+\.\d+) (?:mph|%)", result.output)]
    (own, no_graph, complete, given, permuted, learned, alone, one, tuned, all_alike, wrong, groups, mixtures, owner,
     without, joined, fused, vertical, whole, each, aligned, averaged, corrected, model, parameters, pooled,
     exact) = numbers  # fmt: skip
    assert max(complete, given, permuted, learned) < 0.85 * min(no_graph, own)
    assert one < alone
    assert groups > max(alone, tuned, all_alike, wrong) + 5
    assert groups > mixtures - 2
    assert min(without, joined, fused) > max(owner + 20, vertical - 2, whole)
    assert aligned > each + 35
    assert aligned > max(averaged, corrected)
    assert abs(model - exact) < 5
    assert abs(pooled - exact) < 5 < abs(parameters - exact)
    shown = readme_of_the_tour()
    assert len(shown) > 12
    for label, value in shown:
        now = re.findall(rf"^ {re.escape(label)} +([\d.]+) (?:%|mph)", result.output, re.MULTILINE)
        assert any(float(each) == pytest.approx(value, abs=1.5) for each in now), label
    found = re.search(r"(\d+) of 10\b", result.output)[1]
    untrue = re.search(r"false dependencies +(\d+)", result.output)[1]
    assert int(found) >= 8
    assert int(untrue) <= 1
    assert (tmp_path / "tour" / "tour.html").is_file()
