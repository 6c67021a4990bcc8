"""Planted groups: the same images as without groups, in another order of classes, or turned."""

from __future__ import annotations

from pathlib import Path

import torch

import fedgraph
from fedgraph.data.images.images import ImageSettings, ImageSource

PLAIN = {"set": "digits", "clients": 6, "partition": "iid", "limit": 300, "test": "shared"}


def load(names=None, **table):
    source = ImageSource(ImageSettings(**PLAIN, **table), Path("no-such-folder"))
    return source, source.load(names or source.client_names())


def examples(cohort, client, kind="train"):
    split = cohort.splits[kind].select(slice(client, client + 1))
    batch = split.batch(torch.arange(int(split.num_examples[0]))[None])
    return batch.inputs[0], batch.targets[0]


def test_labels_of_a_group_are_in_one_order_and_images_as_they_are():
    _, plain = load()
    source, grouped = load(groups=3)
    assert grouped.groups == ("group-1", "group-2", "group-3", "group-1", "group-2", "group-3")
    assert "in 3 groups, each with its own order of classes" in source.describe()
    orders = []
    for client in range(6):
        for kind in ("train", "validation", "test"):
            (images, before), (same, after) = examples(plain, client, kind), examples(grouped, client, kind)
            assert torch.equal(images, same)
            order = {int(old): int(new) for old, new in zip(before, after, strict=True)}
            assert all(order[int(old)] == int(new) for old, new in zip(before, after, strict=True))
            if kind == "test":
                assert sorted(order.values()) == list(range(10))
                orders.append(order)
    assert orders[0] == {label: label for label in range(10)}
    assert orders[1] == orders[4] != orders[2] == orders[5] != orders[0] == orders[3]
    assert torch.equal(grouped.label_counts.sum(1), plain.label_counts.sum(1))
    assert not torch.equal(grouped.label_counts, plain.label_counts)


def test_images_of_a_group_are_turned_and_labels_as_they_are():
    _, plain = load()
    _, grouped = load(groups=4, groups_differ="turned")
    for client in range(6):
        (images, labels), (turned, same) = examples(plain, client), examples(grouped, client)
        assert torch.equal(labels, same)
        assert torch.equal(turned, images.rot90(client % 4, (2, 3)))


def test_a_client_has_the_same_examples_on_any_node():
    _, all_of_them = load(groups=2)
    _, alone = load(names=["client-3"], groups=2)
    assert alone.groups == ("group-2",)
    for mine, theirs in zip(examples(alone, 0), examples(all_of_them, 3), strict=True):
        assert torch.equal(mine, theirs)


def test_the_graph_of_the_data_joins_a_group():
    source, cohort = load(groups=2)
    graph = source.given_graph()
    assert graph.neighbours("client-1") == ("client-3", "client-5")
    assert graph.num_edges == 6
    assert graph.agreement(cohort.groups) == {"precision": 1.0, "recall": 1.0, "weight": 1.0}
    assert load()[0].given_graph() is None


def test_a_run_holds_the_graph_that_it_learned_against_the_groups(tmp_path):
    experiment = {
        "experiment": {"method": "sfl-star", "rounds": 4},
        "data": {**PLAIN, "clients": 8, "groups": 2, "limit": 600},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"optimizer": "sgd", "learning-rate": 0.3, "local-epochs": 3},
        "sfl-star": {"features": "updates", "neighbours": 2},
    }
    run = fedgraph.run(experiment, out=tmp_path)
    learned = run.learned_graph
    assert run.summary["graph"] == learned.agreement([run.summary["groups"][name] for name in learned.names])
    assert run.summary["graph"]["weight"] > 0.8  # by chance 3 / 7
    assert set(run.summary["per_group"]["test"]) == {"group-1", "group-2"}
