"""An embedding that is the sample itself is no embedding: raw data must not leave its owner (F3, section 2).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.support.errors import ExperimentError

_COMPARED = 256
"""Samples that are looked at."""


def refuse_raw(inputs: Tensor, embeddings: Tensor, owners: Sequence[str], remedy: str) -> None:
    """Raise ExperimentError where embeddings ``[samples, size]`` hold all of the inputs ``[samples, *input_shape]``.

    In whatever order, and whatever else they hold. Features that are the same in all samples tell nothing of a sample.

    owners : whose samples and model these are. remedy : what they can do.
    """
    rows, found = inputs[:_COMPARED].flatten(1).float(), embeddings[:_COMPARED].flatten(1).float()
    features = _varying(rows)
    if bool(features <= _varying(found)) if features else rows.numel() > 0 and torch.equal(rows, found):
        raise ExperimentError(
            f"owner {', '.join(owners)}: what the model puts out as the embedding of a sample is the sample itself, "
            f"which must not leave its owner; {remedy}"
        )


def _varying(values: Tensor) -> set[bytes]:
    """The columns of ``[samples, size]`` whose values differ."""
    columns = values[:, (values != values[:1]).any(0)] + 0.0  # 0 and -0 are one number
    return {column.tobytes() for column in columns.T.contiguous().cpu().numpy()}
