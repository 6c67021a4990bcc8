import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedgraph.algorithms.pfedgraph import onto_simplex
from fedgraph.graph import read_graph


def test_projection_is_the_nearest_point_of_the_simplex():
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double()
    found = onto_simplex(rows)
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(1), torch.ones(6).double())
    for row, nearest in zip(rows.numpy(), found.numpy(), strict=True):
        best = minimize(
            lambda w, row=row: ((w - row) ** 2).sum(), np.full(5, 0.2), bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, tol=1e-12,
        )  # fmt: skip
        np.testing.assert_allclose(nearest, best.x, atol=1e-5)
    there = onto_simplex(torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]))
    torch.testing.assert_close(there, torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]))


def mixture(models, initial, sizes, alpha):
    """Each client's weights by a general solver, from the objective of the paper."""
    changes = np.stack([(model - initial).numpy() for model in models])
    changes /= np.linalg.norm(changes, axis=1, keepdims=True)
    likeness = changes @ changes.T
    likeness[likeness > 0.9] = 1.0
    p = (sizes / sizes.sum()).numpy()
    number = len(p)
    return np.stack([
        minimize(
            lambda w, s=s: alpha * ((w - p) ** 2).sum() - w @ s, np.full(number, 1 / number), bounds=[(0, 1)] * number,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, tol=1e-13,
        ).x
        for s in likeness
    ])  # fmt: skip


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_whole_run(problem, close, alpha):
    lam = 0.5
    folder = problem.run("pfedgraph", {"alpha": alpha, "lambda-similarity": lam}, lost=(2,))
    models, weights = [problem.initial] * 3, None
    for server_round in (1, 2, 3):
        present = [0, 2] if server_round == 2 else [0, 1, 2]
        trained = []
        for client in present:
            u = models[client]

            def term(v, u=u, first=server_round == 1):
                v = v.detach().requires_grad_()
                cosine = torch.nn.functional.cosine_similarity(v, u, dim=0)
                return 0.0 if first else -lam * torch.autograd.grad(cosine, v)[0]

            trained.append(problem.train(client, u, term))
        weights = mixture(trained, problem.initial, problem.sizes[present], alpha)
        for row, client in enumerate(present):
            models[client] = torch.from_numpy(weights[row]) @ torch.stack(trained)
    found = problem.own_models(folder)
    for client, model in enumerate(models):
        torch.testing.assert_close(found[client].double(), model, rtol=1e-4, atol=1e-5)
    graph = read_graph(folder.path / "learned-graph.npz", names=problem.names)
    np.testing.assert_allclose(graph.dense().numpy(), weights, atol=1e-4)


def test_much_alpha_is_fedavg_and_little_hears_the_alike_alone(problem, close):
    table = {"alpha": 1e9, "lambda-similarity": 0.0}
    like_fedavg = problem.own_models(problem.run("pfedgraph", table))
    average = problem.global_model(problem.run("fedavg"))
    for model in like_fedavg:
        torch.testing.assert_close(model.double(), average.double(), rtol=1e-4, atol=1e-5)
    table["alpha"] = 1e-6
    alone = problem.own_models(problem.run("pfedgraph", table))
    local = problem.own_models(problem.run("local"))
    torch.testing.assert_close(alone, local, rtol=1e-4, atol=1e-5)
