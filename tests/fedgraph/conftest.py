"""Tables of mixed columns."""

import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema


@pytest.fixture(scope="session")
def mixed():
    """``mixed(rows)`` -> a schema of a number, a binary, a categorical and another number, in a chain; and its rows."""
    schema = Schema(
        (
            Feature("size", "real"),
            Feature("ill", "binary", ("no", "yes")),
            Feature("place", "categorical", ("a", "b", "c")),
            Feature("age", "integer"),
        )
    )

    def rows(count: int, seed: int = 0) -> tuple[Schema, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        size = torch.rand(count, generator=random)
        ill = (torch.rand(count, generator=random) < 0.1 + 0.8 * size).float()
        place = (torch.rand(count, generator=random) * 1.5 + 1.5 * ill).long()
        age = (0.3 * place + 0.1 * torch.randn(count, generator=random)).clamp(0, 1)
        kinds = torch.nn.functional.one_hot(place.clamp(max=2), 3).float()
        return schema, torch.cat([size[:, None], ill[:, None], kinds, age[:, None]], 1)

    return rows
