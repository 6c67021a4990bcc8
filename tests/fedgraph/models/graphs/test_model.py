"""Models of graphs: what clients compute and learn is what a plain loop of PyTorch Geometric does."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.nn import BatchNorm, GCNConv, SAGEConv, global_mean_pool

from fedgraph.data.graphs import GraphDataSet, GraphOptions
from fedgraph.models import TaskSpec, build, initial_model
from fedgraph.models.graphs import GraphTable
from fedgraph.support.errors import ExperimentError
from fedgraph.training import Cohort, TrainSettings

NODES = TaskSpec("classification", (5,), (3,), level="node")
WHOLE = TaskSpec("classification", (5,), (3,), level="graph")
HERE = f"{__name__}:"


class Two(nn.Module):
    """As in the tutorial of PyTorch Geometric."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(in_channels, 8), GCNConv(8, out_channels)

    def forward(self, x, edge_index, edge_weight=None):
        return self.conv2(self.conv1(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class OfData(Two):
    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.edge_weight)


class OfGraphs(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.norm, self.last = SAGEConv(in_channels, 8), BatchNorm(8), nn.Linear(8, out_channels)

    def forward(self, x, edge_index, batch):
        return self.last(global_mean_pool(self.norm(self.conv(x, edge_index)).relu(), batch))


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, features, adjacency):
        return self.last(adjacency @ features)


class Towns(GraphDataSet[GraphOptions]):
    def client_names(self):
        return ["mercy", "county", "north"]

    def graphs(self, client):
        place = self.client_names().index(client)
        draws = torch.Generator().manual_seed(place)
        found = []
        for size in [12 + 4 * place] if self.settings.level == "node" else [4, 3, 5, 6, 4, 3, 5, 4, 6, 3]:
            y = torch.randint(3, (size if self.settings.level == "node" else 1,), generator=draws)
            weight = {"edge_weight": torch.rand(3 * size, generator=draws)} if place == 1 else {}
            found.append(
                {
                    "x": torch.randn(size, 5, generator=draws) + y[:, None],
                    "edge_index": torch.randint(size, (2, 3 * size), generator=draws),
                    "y": torch.tensor([2, 1, 0, *y[3:]]) if len(y) > 3 else y,
                    **weight,
                }
            )
        return found


def train(model, examples):
    pass


def towns(level):
    source = Towns(GraphOptions(level=level, classes=3), None)
    return source, source.load(source.client_names())


def module_with(model, row):
    module = model.twin()
    module.load_state_dict(model.layout.row_state(row), strict=False)
    return module


@pytest.mark.parametrize(
    "table",
    [{"name": "gcn"}, {"name": "graphsage"}, {"name": "gin"}, {"name": HERE + "Two"}, {"name": HERE + "OfData"}],
)
def test_a_client_learns_what_a_loop_on_its_graph_learns(table):
    source, data = towns("node")
    model = build(table, NODES)
    settings = TrainSettings(optimizer="sgd", learning_rate=0.1, local_steps=3, batch_size=64, weight_decay=0.01)
    cohort = Cohort(model, data, settings, seed=0)
    start = torch.stack([initial_model(model, seed) for seed in range(3)])
    trained = cohort.train(start, round=1)
    metrics = cohort.evaluate(trained.parameters, "test")
    for row, name in enumerate(data.names):
        own = source.labelled(name)
        graph = own.graphs[0]
        given = (graph.x, graph.edge_index, graph.edge_weight)
        if table["name"].endswith("OfData"):
            from torch_geometric.data import Data

            given = (Data(x=graph.x, edge_index=graph.edge_index, edge_weight=graph.edge_weight),)
        module = module_with(model, start[row])
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.01)
        nodes = {
            name: split.inputs[split.rows[row][split.rows[row] >= 0]].flatten()
            - 1
            - sum(12 + 4 * k for k in range(row))
            for name, split in data.splits.items()
        }
        for _ in range(3):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(*given)[nodes["train"]], own.labels[nodes["train"]]).backward()
            optimiser.step()
        assert torch.allclose(model.layout.row(module.state_dict()), trained.parameters[row], atol=1e-5)
        with torch.no_grad():
            right = (module.eval()(*given).argmax(1) == own.labels)[nodes["test"]]
        assert float(metrics["accuracy"][row]) == pytest.approx(float(right.double().mean()))


def test_whole_graphs_with_batch_statistics_are_a_minibatch_as_pytorch_geometric_makes_them():
    from torch_geometric.data import Batch, Data

    source, data = towns("graph")
    model = build({"name": HERE + "OfGraphs"}, WHOLE)
    settings = TrainSettings(optimizer="sgd", learning_rate=0.1, local_steps=1, batch_size=64)
    start = initial_model(model, 0).expand(3, -1)
    trained = Cohort(model, data, settings, seed=0).train(start, round=1).parameters
    for row, name in enumerate(data.names):
        own = source.labelled(name)
        rows = data.splits["train"].rows[row] - 10 * row
        batch = Batch.from_data_list(
            [
                Data(x=own.graphs[at].x, edge_index=own.graphs[at].edge_index, y=own.labels[at : at + 1])
                for at in sorted(rows)
            ]
        )
        module = module_with(model, start[row]).train()
        nn.functional.cross_entropy(module(batch.x, batch.edge_index, batch.batch), batch.y).backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        assert torch.allclose(model.layout.row(module.state_dict()), trained[row], atol=1e-5)


def test_who_shares_a_node_is_of_no_matter_bit_for_bit():
    source, data = towns("node")
    model = build({"name": "gcn", "dropout": 0.5, "hidden": 8}, NODES)
    settings = TrainSettings(optimizer="adam", learning_rate=0.01, local_epochs=2, batch_size=4)
    start = initial_model(model, 0).expand(3, -1)
    together = Cohort(model, data, settings, seed=0).train(start, round=1).parameters
    for row, name in enumerate(data.names):
        alone = Cohort(model, source.load([name]), settings, seed=0).train(start[:1], round=1).parameters
        assert torch.equal(alone[0], together[row])


def test_the_embedding_is_the_input_of_the_last_convolution_or_linear_layer():
    _, data = towns("node")
    model = build({"name": HERE + "Two"}, NODES)
    assert (model.embedding_layer, model.embedding_size) == ("conv2", 8)
    assert all(name.startswith("conv2.") for name in model.head_tensors)
    assert build({"name": "gin", "hidden": 6}, NODES).head_tensors == ("head.weight", "head.bias")
    bound = model.with_graphs(data.graphs)
    row = initial_model(model, 0)
    numbers = data.splits["test"].select(slice(0, 1)).batch(torch.arange(2)[None]).inputs
    embeddings, _ = bound.embed(bound.layout.unflatten(row[None]), numbers, training=False)
    module, graph = module_with(model, row), data.graphs.around(numbers)
    assert torch.allclose(embeddings[0], module.conv1(graph.x, graph.edge_index).relu()[graph.examples])


def test_models_of_pytorch_geometric_get_their_channels():
    model = build(
        {"name": "torch_geometric.nn:GraphSAGE", "options": {"hidden_channels": 8, "num_layers": 2, "dropout": 0.5}},
        NODES,
    )
    assert model.twin().in_channels == 5
    assert model.layout.shapes[-1][0] == 3 or model.twin().out_channels == 3
    assert model.draws


@pytest.mark.parametrize(
    ("table", "task", "message"),
    [
        ({"name": "mlp", "hidden": [4]}, NODES, "'mlp' .*gcn, graphsage and gin"),
        ({"name": "gcn"}, TaskSpec("classification", (5,), (3,)), "'gcn' .*graphs"),
        ({"name": HERE + "Foreign"}, NODES, "'features'; .*x, edge_index"),
        ({"name": HERE + "Two"}, WHOLE, "'batch'.*global_mean_pool"),
        ({"name": HERE + "OfGraphs", "options": {"out_channels": 7}}, WHOLE, r"puts out \[2, 7\] for two graphs"),
    ],
)
def test_models_that_do_not_fit(table, task, message):
    with pytest.raises(ExperimentError, match=message):
        build(table, task)


def test_a_function_of_ones_own_is_refused():
    _, data = towns("node")
    with pytest.raises(ExperimentError, match="whole graphs"):
        Cohort(build({"name": "gcn"}, NODES), data, TrainSettings(function=f"{HERE}train"), seed=0)


@pytest.mark.parametrize(
    ("table", "weighs"),
    [
        ({"name": "gcn"}, True),
        ({"name": "graphsage"}, False),
        ({"name": "gin"}, False),
        ({"name": HERE + "OfData"}, True),
        ({"name": "torch_geometric.nn:GCN", "options": {"hidden_channels": 4, "num_layers": 2}}, True),
        ({"name": "torch_geometric.nn:GraphSAGE", "options": {"hidden_channels": 4, "num_layers": 2}}, False),
    ],
    ids=lambda value: str(value.get("name")) if isinstance(value, dict) else "",
)
def test_weights_of_edges_that_have_no_effect_are_said(table, weighs, caplog):
    _, data = towns("node")
    assert data.graphs is not None
    model = build(table, NODES)
    model.with_graphs(data.graphs)
    assert any("does not use the weights of edges" in said for said in caplog.messages) is not weighs
    caplog.clear()
    without = GraphTable.of([(torch.ones(3, 5), torch.tensor([[0, 1], [1, 2]]), None)], "node")
    model.with_graphs(without)
    assert not caplog.messages
    model.with_graphs(replace(data.graphs, edge_weight=-data.graphs.edge_weight))
    assert any("GCNConv divides by the root" in said for said in caplog.messages) is weighs
