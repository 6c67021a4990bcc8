from dataclasses import replace

import pytest
import torch

from fedgraph.algorithms.ipa import IPASettings
from fedgraph.clients.engine.update_release import UpdateRelease
from fedgraph.clients.ipa import IPAClient
from fedgraph.experiment import AgreementTable
from fedgraph.support.errors import ReplyError

PRIVACY = {"clip-norm": 0.5, "noise-multiplier": 2.0, "releases": 3}


@pytest.fixture
def releasing(one_node):
    """``releasing(settings, server_round, clients)``: the release of a request, and the width of a model."""

    def releasing(settings, server_round=1, clients=("client-0",), **model):
        node = one_node(IPAClient, {**IPASettings().as_table(), **settings})
        served = node.served(server_round, clients=clients)
        release = UpdateRelease(served, served.settings.noise, served.settings.privacy)
        return release, node.layout.num_parameters

    return releasing


def test_without_noise_all_leaves_as_it_is(releasing):
    release, width = releasing({})
    after = torch.randn(1, 3, width)
    assert release(torch.zeros(1, 3, width), after) is after
    assert release.publishable({"loss": torch.ones(1)})["loss"].tolist() == [1.0]


def test_the_papers_noise_is_on_a_clients_own_parameters_and_can_be_repeated(releasing):
    release, width = releasing({"noise": 0.01})
    after = torch.randn(1, 3, width)
    difference = release(torch.zeros_like(after), after) - after
    assert float(difference[0, 0].std()) == pytest.approx(0.01, rel=0.1)
    assert not difference[0, 1:].any()
    assert torch.equal(release(torch.zeros_like(after), after) - after, difference)
    others = [releasing({"noise": 0.01}, 2)[0], releasing({"noise": 0.01}, 1, ("client-1",))[0]]
    for other in others:
        assert not torch.equal(other(torch.zeros_like(after), after) - after, difference)


def test_noise_that_protects_is_on_everything_that_leaves_and_fresh(releasing):
    """Of deviation multiplier times twice the norm that updates are shortened to."""
    release, width = releasing({"privacy": PRIVACY})
    before = torch.randn(1, 3, width)
    first, second = (release(before, before) - before for _ in range(2))
    assert first.std(2).flatten().tolist() == pytest.approx([2.0] * 3, rel=0.15)
    assert not torch.equal(first, second)
    assert release.publishable({"loss": torch.ones(1)})["loss"].isnan().all()


def test_the_change_of_all_models_is_one_vector(releasing):
    release, width = releasing({"privacy": {**PRIVACY, "noise-multiplier": 1e-6}}, clients=("client-0", "client-1"))
    before, change = torch.randn(2, 3, width), torch.randn(2, 3, width)
    change[1] *= 0.1 / change[1].norm()
    found = release(before, before + change) - before
    torch.testing.assert_close(found[0], 0.5 * change[0] / change[0].norm(), rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1], change[1], rtol=0, atol=1e-4)


def test_an_update_that_diverged_looks_like_none(releasing, caplog):
    release, width = releasing({"privacy": PRIVACY})
    before = torch.randn(1, 2, width)
    spoilt = before.clone()
    spoilt[0, 1, 3] = torch.inf
    found = release(before, spoilt) - before
    assert float(found.std()) == pytest.approx(2.0, rel=0.15)
    assert "the training of client-0 diverged" in caplog.text
    release(before, spoilt)
    release(before, spoilt)
    with pytest.raises(ReplyError, match="client-0: .*as many as was promised"):
        release(before, spoilt)


def test_releases_are_counted_whatever_the_round(releasing):
    """By client, and in few files."""
    settings = {"privacy": PRIVACY}
    change = torch.zeros(1, 1, releasing(settings)[1])
    for server_round in (5, -1, 1 << 50):
        releasing(settings, server_round)[0](change, change)
    for server_round in (6, -2, 1):
        with pytest.raises(ReplyError, match="as many as was promised"):
            releasing(settings, server_round)[0](change, change)
    release, _ = releasing(settings, 1, ("client-1",))
    release(change, change)
    release, _ = releasing(settings, 1, ("client-0", "client-1"))
    with pytest.raises(ReplyError, match="of client-0: "):
        release(change.expand(2, -1, -1), change.expand(2, -1, -1))


def test_a_budget_is_over_all_runs_and_whatever_a_run_promises(releasing):
    """Forty runs by another name, with other noise or more releases, have the three that were promised."""
    change = torch.zeros(1, 1, releasing({"privacy": PRIVACY})[1])

    def released(run, limits=None, **privacy):
        release, _ = releasing({"privacy": {**PRIVACY, **privacy}})
        client = release.client
        vars(client.node)["limits"] = limits or AgreementTable()
        client.request = replace(client.request, run=run)
        try:
            release(change, change)
        except ReplyError:
            return False
        return True

    changes = ({}, {"clip-norm": 0.6}, {"releases": 99}, {"noise-multiplier": 2.0 + 1e-6})
    assert sum(released(f"run-{number}", **changes[number % 4]) for number in range(40)) == 3
    # Four releases of multiplier 2 have an epsilon of 4.4 at a delta of 1e-5.
    assert not released("last", AgreementTable(epsilon=4.3))
    assert released("last", AgreementTable(epsilon=4.4), releases=1)
    assert not released("last", AgreementTable(epsilon=4.4), releases=99)


def test_buffers_leave_as_they_came(releasing, digits_tables):
    digits_tables["model"] = {"name": "resnet9", "width": 2}
    digits_tables["data"]["layout"] = "image"
    for settings in ({"noise": 0.01}, {"privacy": PRIVACY}):
        release, width = releasing(settings)
        trained = release.client.cohort.model.layout.num_trainable
        assert trained < width
        before, after = torch.randn(1, 2, width), torch.randn(1, 2, width)
        found = release(before, after)
        assert torch.equal(found[..., trained:], before[..., trained:])
        assert not torch.equal(found[..., :trained], after[..., :trained])
