"""FedAtt: the server moves each layer towards the clients, with attention weights from their distances.

Ji et al., Learning Private Neural Language Modeling with Attentive Aggregation (IJCNN 2019), eqs. 3 to 5, algorithm 2.
The noise that the authors' programs add to every entry is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graph import attention_from_distances
from fedgraph.methods.baselines import FedAttSettings
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.engine.global_model import GlobalModelStrategy


class FedAtt(GlobalModelStrategy[FedAttSettings]):
    """w_l <- w_l - step * sum_k a_kl (w_l - w_kl), where a_l = softmax over k of ||w_l - w_kl||_2.

    A layer l is a tensor of the model, buffers included. Clients without training examples take no part.
    """

    name = "fedatt"
    title = "Attentive aggregation: each layer moves towards the clients, weighted by distance (FedAtt)"
    paper = "https://arxiv.org/abs/1812.07108"
    defences = CohortStrategy.defences

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the next global model ``[parameters]``."""
        w = self.global_model()
        layers = (replies.parameters - w).split(self.layout.sizes, dim=1)
        distances = torch.stack([torch.linalg.vector_norm(layer, dim=1) for layer in layers])
        trained = (replies.num_examples > 0).expand_as(distances)
        attention = attention_from_distances(distances, temperature=-1, mask=trained)
        moves = [weights @ layer for weights, layer in zip(attention, layers, strict=True)]
        return w + self.settings.step * torch.cat(moves)
