import pytest
from flwr.app import ArrayRecord, Context, RecordDict

from fedgraph.algorithms import STOCK_CLIENT
from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.disclosure import disclosure
from fedgraph.clients.engine.node import Node
from fedgraph.experiment import built_ins
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.strategies.engine.chosen import has_phases
from fedgraph.support.plugins import a_class, a_client, load_object

#: Words of a disclosure, by the arrays in replies that they speak of.
WORDS = {
    "parameters": "parameters",
    "others": "others' models",
    "arrays": "the mean of its clients' models",
    "control": "control variate",
    "label-counts": "examples of each class",
    "moments": "mean and standard deviation",
    "predicted": "predicted class of each test example",
    "targets": "the true class",
    "embeddings": "an embedding of each sample",
    "predictions": "class probabilities",
    "labels": "its label",
    "split": "its split",
    "present": "which samples each owner has",
}
METHODS = sorted(name for name, found in built_ins().items() if not has_phases(found) and name != "centralised")
"""Those of rounds whose clients may be on two nodes."""


def node(**config):
    return Node.of(Context(0, 0, config, RecordDict(), {}))


def told(tables, **config):
    experiment = parse_experiment(tables)
    chosen = load_object("fedgraph.strategies.engine.chosen:ChosenMethod", "strategy", a_class())(experiment)
    return disclosure(experiment, chosen.client, node(**config))


@pytest.mark.parametrize("name", built_ins())
def test_every_built_in_says_what_it_sends(name):
    client_class = load_object(getattr(built_ins()[name], "default_client", STOCK_CLIENT), "client", a_client)
    assert hasattr(client_class, "sends") or hasattr(client_class, "sends_as")


def arrays_in_replies(run_experiment, tables, monkeypatch):
    """Names of the arrays that nodes send in a run."""
    found = set()

    def listening(message, context):
        reply = client_app(message, context)
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                found.update(["arrays"] if name == "arrays" else [key.split(".")[0] for key in record])
        return reply

    run_experiment(tables, client=listening)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_no_array_leaves_that_is_not_spoken_of(digits_tables, run_experiment, monkeypatch, method):
    digits_tables["experiment"]["method"] = method
    digits_tables["evaluation"] = {"compare-peers": method == "ipa", "splits": ["test"]}
    digits_tables["data"]["test"] = "shared"
    leaves = " ".join(told(digits_tables).leaves)
    sent = arrays_in_replies(run_experiment, digits_tables, monkeypatch)
    assert sent & {"parameters", "arrays"}
    for name in sent:
        assert WORDS[name] in leaves, name
    if "label-counts" not in sent:
        assert WORDS["label-counts"] not in leaves


def test_no_array_of_owners_leaves_that_is_not_spoken_of(patches_tables, run_experiment, monkeypatch):
    leaves = " ".join(told(patches_tables).leaves)
    for name in arrays_in_replies(run_experiment, patches_tables, monkeypatch):
        assert WORDS[name] in leaves, name
    patches_tables["f3"]["noise"] = {"clip-norm": 1.0, "epsilon": 1.0, "delta": 1e-5}
    noisy = " ".join(told(patches_tables).leaves)
    assert "with noise" in noisy
    assert WORDS["predictions"] not in noisy


def test_statistics_that_are_asked_for_are_among_what_leaves(table_tables):
    assert "ranges of numbers" not in " ".join(told(table_tables).leaves)
    table_tables["fedngm"]["scaling"] = {"source": "shared-ranges"}
    assert "ranges of numbers" in " ".join(told(table_tables).leaves)


def test_the_epsilon_of_all_statistics_is_told(table_tables):
    table_tables["fedngm"] |= {
        "scaling": {"source": "shared-ranges"}, "recovery": {"source": "summed-statistics"},
        "statistics": {"noise": {"epsilon": 2.5}},
    }  # fmt: skip
    leaves = " ".join(told(table_tables).leaves)
    assert leaves.count("with noise of epsilon 2.5") == 2
    assert "ranges and sums have an epsilon of 5 in all" in leaves
    table_tables["fedngm"]["statistics"]["noise"]["mechanism"] = "gaussian"
    assert "an epsilon of 5 and a delta of 2e-06 in all" in " ".join(told(table_tables).leaves)
    table_tables["fedngm"]["model"] = "ngr"
    alone = " ".join(told(table_tables).leaves)
    assert "(ranges have an epsilon of 2.5 and a delta of 1e-06 in all)" in alone, "revealers ask for no sums"


def test_noise_of_peers_is_told_for_what_it_is(digits_tables):
    digits_tables["experiment"]["method"] = "ipa"
    digits_tables["ipa"] = {"noise": 0.001}
    assert "without a guarantee" in " ".join(told(digits_tables).leaves)


def test_a_client_class_that_says_nothing_is_not_vouched_for(digits_tables, tmp_path, monkeypatch):
    (tmp_path / "silent_client.py").write_text("class Silent:\n    handle = classmethod(print)\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = disclosure(parse_experiment(digits_tables), "silent_client:Silent", node())
    assert any("undeclared data of silent_client:Silent" in line for line in found.leaves)
