"""FedDyn: every client's loss is bent so that what all of them find is what the sum of their losses wants.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization (ICLR
2021), algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedgraph.support.settings import Settings
from strategies.engine.drift import DriftStrategy


class FedDynSettings(Settings):
    """``[feddyn]``.

    alpha : weight of the pull towards the global model, and of the drift that is held against it. The smaller, the
            further clients go in a round, and the global model moves by the drift too: 0.01 to 0.1 in the paper.
    """

    alpha: float = Field(default=0.01, gt=0)


class FedDyn(DriftStrategy):
    """Clients minimise ``L_k(v) - <g_k, v> + alpha/2 ||v - theta||^2``, where g_k is ``-alpha`` times their drift.

    The paper's h, the server's state, is ``-alpha`` times the mean drift.
    """

    settings_type: ClassVar[type[Settings]] = FedDynSettings
    default_client: ClassVar[str] = "clients.feddyn:DriftClient"
