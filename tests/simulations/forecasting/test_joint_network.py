import torch

from fedgraph.simulations.forecasting.joint_network import GraphWaveNet, JointPerceptron


def test_the_forecasts_of_graph_wavenet_follow_its_clients():
    """Clients in another order, with their graph and node embeddings, have the same forecasts."""
    torch.manual_seed(0)
    given = torch.rand(5, 5)
    network = GraphWaveNet(5, 6, 2, 3, given).eval()
    windows, present = torch.randn(5, 4, 12), torch.ones(5, 4, dtype=torch.bool)
    order = torch.tensor([3, 0, 4, 1, 2])
    other = GraphWaveNet(5, 6, 2, 3, given[order][:, order]).eval()
    state = network.state_dict()
    state |= {"sources": state["sources"][order], "targets": state["targets"][:, order]}
    del state["transitions"]
    other.load_state_dict(state, strict=False)
    torch.testing.assert_close(other(windows[order], present), network(windows, present)[order])


def test_graph_wavenet_sees_every_step_and_only_its_neighbours():
    torch.manual_seed(0)
    given = torch.zeros(4, 4)
    given[0, 1] = 1.0
    network = GraphWaveNet(4, 12, 1, 2, given).eval()
    with torch.no_grad():
        # A softmax of one large and some zero products: every client hears itself alone over the adaptive graph.
        network.sources.copy_(torch.eye(4, 10) * 100)
        network.targets.copy_(torch.eye(10, 4))
    windows = torch.randn(4, 1, 12, requires_grad=True)
    network(windows, torch.ones(4, 1, dtype=torch.bool))[0].sum().backward()
    heard = windows.grad[:, 0].abs()
    assert bool((heard[:2] > 0).all())
    assert float(heard[2:].max()) < 1e-6


def test_the_perceptron_keeps_clients_and_windows_apart():
    torch.manual_seed(0)
    network = JointPerceptron(3, 4, 2).eval()
    windows, present = torch.randn(3, 5, 4), torch.ones(3, 5, dtype=torch.bool)
    found = network(windows, present)
    assert found.shape == (3, 5, 2)
    torch.testing.assert_close(network(windows[:, 2:3], present[:, 2:3]), found[:, 2:3])
