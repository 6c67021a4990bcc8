"""The one table of built-in methods: a short name, the class on each side, and where it was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgraph.support.errors import ExperimentError


@dataclass(frozen=True)
class Method:
    """A short name for a pair of dotted paths.

    needs : what a run of it must be given beyond data and model, in words for ``fedgraph methods``.
    own_models : its own table says what is trained, and an experiment has no table ``[model]``.
    defaults : what its table says of keys that are not given, where the strategy's own defaults make it another method.
    """

    name: str
    title: str
    strategy: str
    client: str
    needs: str
    paper: str = ""
    own_models: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


STOCK_CLIENT = "clients.stock:StockClient"
COHORT_CLIENT = "clients.engine.base:CohortClient"
PERSONAL_CLIENT = "clients.fedper:PersonalLayersClient"
F3_CLIENT = "clients.f3:F3Client"
F3_SECRET_CLIENT = "clients.f3_secret:SecretClient"
VERTICAL_CLIENT = "clients.vfl:VerticalClient"
FEDNGM_CLIENT = "clients.fedngm:FedNGMClient"

BUILT_IN: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="sfl",
            title="Structured federated learning with a given client graph",
            strategy="strategies.sfl:SFL",
            client="clients.sfl:SFLClient",
            needs="a client graph ([graph])",
            paper="https://arxiv.org/abs/2203.00829",
        ),
        Method(
            name="sfl-star",
            title="Structured federated learning that learns the client graph (SFL*)",
            strategy="strategies.sfl_star:SFLStar",
            client="clients.sfl:SFLClient",
            needs="nothing; a client graph ([graph]) may be given",
            paper="https://arxiv.org/abs/2203.00829",
        ),
        Method(
            name="sfl-cold-start",
            title="SFL where some clients have hardly any data: they are given models of their neighbourhood",
            strategy="strategies.sfl_cold_start:SFLColdStart",
            client="clients.sfl_cold_start:SFLColdStartClient",
            needs="a client graph ([graph])",
        ),
        Method(
            name="sfl-per",
            title="SFL of all layers but the last, which stays with the client (SFL+PER)",
            strategy="strategies.sfl:SFLPer",
            client="clients.sfl:SFLClient",
            needs="a client graph ([graph])",
            paper="https://arxiv.org/abs/2203.00829",
        ),
        Method(
            name="sfl-lg",
            title="SFL of the last layer; the others stay with the client (SFL+LG)",
            strategy="strategies.sfl:SFLLG",
            client="clients.sfl:SFLClient",
            needs="a client graph ([graph])",
            paper="https://arxiv.org/abs/2203.00829",
        ),
        Method(
            name="sfl-ft",
            title="SFL, measured after each client has fine-tuned its personalised model",
            strategy="strategies.sfl:SFLFineTuning",
            client="clients.sfl:SFLFineTuningClient",
            needs="a client graph ([graph])",
        ),
        Method(
            name="f3",
            title="Federated feature fusion: owners' frozen models, one exchange of embeddings, a learned graph",
            strategy="strategies.f3:F3",
            client=F3_CLIENT,
            needs="clients that hold different features of the same samples, such as metr-la-rush-hour",
            paper="https://proceedings.mlr.press/v216/ma23b.html",
        ),
        Method(
            name="f3-inference",
            title="Predictions of new samples by a fusion model that a run of f3 has trained",
            strategy="strategies.f3_inference:F3Inference",
            client=F3_CLIENT,
            needs="[f3-inference] run, the folder of that run; `fedgraph predict` sees to it",
            paper="https://proceedings.mlr.press/v216/ma23b.html",
        ),
        Method(
            name="f3-secret",
            title="The same on secret shares: neither the server nor any aggregator sees an embedding",
            strategy="strategies.f3_secret:F3Secret",
            client=F3_SECRET_CLIENT,
            needs="[f3-secret] run, and nodes with node config 'aggregator'; `fedgraph predict --secret` plays them",
            paper="https://proceedings.mlr.press/v216/ma23b.html",
        ),
        Method(
            name="vfl",
            title="Vertical federated learning: gradients of embeddings go back to the owners' models",
            strategy="strategies.vfl:Vertical",
            client=VERTICAL_CLIENT,
            needs="clients that hold different features of the same samples, such as metr-la-rush-hour",
            paper="https://proceedings.mlr.press/v216/ma23b.html",
        ),
        Method(
            name="ipa",
            title="Iterative parameter alignment: peers keep different models and pull them together as they train",
            strategy="strategies.ipa:IPA",
            client="clients.ipa:IPAClient",
            needs="two clients at least; [train] keep-optimizer = true for the paper's Adam",
            paper="https://arxiv.org/abs/2311.04818",
        ),
        Method(
            name="fedngm",
            title="Federated neural graphical models: one probabilistic model of all common features, made personal",
            strategy="strategies.fedngm:FedNGM",
            client=FEDNGM_CLIENT,
            needs="clients with tables of their own (mixed-table, linked-deaths, bayesian-network); no [model]",
            paper="https://arxiv.org/abs/2309.11680",
            own_models=True,
        ),
        Method(
            name="local",
            title="Local-only training, nothing is shared",
            strategy="strategies.local:LocalOnly",
            client=COHORT_CLIENT,
            needs="nothing",
        ),
        Method(
            name="fedavg",
            title="Federated averaging, Flower's own strategy",
            strategy="flwr.serverapp.strategy:FedAvg",
            client=STOCK_CLIENT,
            needs="nothing",
            paper="https://arxiv.org/abs/1602.05629",
        ),
        Method(
            name="fedavg-own-start",
            title="Federated averaging of models that start from initialisations of their own",
            strategy="strategies.fedavg_own_start:FedAvgOwnStart",
            client=COHORT_CLIENT,
            needs="nothing",
        ),
        Method(
            name="fedprox",
            title="FedAvg with a proximal term, Flower's own strategy",
            strategy="flwr.serverapp.strategy:FedProx",
            client=STOCK_CLIENT,
            needs="nothing; [fedprox] proximal-mu is 0.1 unless given (0.001 to 1 in the paper; with 0 it is FedAvg)",
            paper="https://arxiv.org/abs/1812.06127",
            defaults={"proximal-mu": 0.1},
        ),
        Method(
            name="fedper",
            title="FedAvg of all layers but the last, which stays with the client",
            strategy="strategies.fedper:FedPer",
            client=PERSONAL_CLIENT,
            needs="nothing",
            paper="https://arxiv.org/abs/1912.00818",
        ),
        Method(
            name="lg-fedavg",
            title="FedAvg of the last layer; the others stay with the client",
            strategy="strategies.fedper:LGFedAvg",
            client=PERSONAL_CLIENT,
            needs="nothing",
            paper="https://arxiv.org/abs/2001.01523",
        ),
        Method(
            name="fedatt",
            title="Global model that moves layer by layer towards the clients, most towards the furthest",
            strategy="strategies.fedatt:FedAtt",
            client=COHORT_CLIENT,
            needs="nothing",
            paper="https://arxiv.org/abs/1812.07108",
        ),
        Method(
            name="scaffold",
            title="FedAvg with control variates against the drift of clients (SCAFFOLD)",
            strategy="strategies.scaffold:Scaffold",
            client="clients.scaffold:ScaffoldClient",
            needs='SGD ([train] optimizer = "sgd")',
            paper="https://arxiv.org/abs/1910.06378",
        ),
        Method(
            name="feddyn",
            title="FedAvg with losses that are bent by every client's drift (FedDyn)",
            strategy="strategies.feddyn:FedDyn",
            client="clients.feddyn:DriftClient",
            needs="nothing",
            paper="https://arxiv.org/abs/2111.04263",
        ),
        Method(
            name="feddc",
            title="FedDyn with control variates (FedDC)",
            strategy="strategies.feddc:FedDC",
            client="clients.feddc:FedDCClient",
            needs='SGD ([train] optimizer = "sgd")',
            paper="https://arxiv.org/abs/2203.11751",
        ),
        Method(
            name="cgsv",
            title="Clients are given as much of the common update as their own agree with it (CGSV)",
            strategy="strategies.cgsv:CGSV",
            client=COHORT_CLIENT,
            needs="nothing",
            paper="https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html",
        ),
        Method(
            name="ditto",
            title="FedAvg, and a model of each client's own that stays close to the global one",
            strategy="strategies.ditto:Ditto",
            client="clients.ditto:DittoClient",
            needs="nothing",
            paper="https://arxiv.org/abs/2012.04221",
        ),
        Method(
            name="fedavg-ft",
            title="FedAvg, measured after each client has fine-tuned the global model",
            strategy="strategies.fedavg_ft:FedAvgFineTuning",
            client="clients.fedavg_ft:FineTuningClient",
            needs="nothing",
            paper="https://arxiv.org/abs/1910.10252",
        ),
        Method(
            name="centralised",
            title="One pooled model, trained on everybody's data in one place",
            strategy="strategies.centralised:Centralised",
            client="clients.centralised:CentralisedClient",
            needs="all clients on one node (--nodes 1)",
        ),
    )
}


def resolve(method: str | None, strategy: str | None, client: str | None) -> Method:
    """The method an experiment names, by short name, by dotted paths, or by a short name with one side replaced.

    A strategy given by dotted path without a client gets ``""`` as its client: the caller chooses by the kind of
    strategy (a stock Flower strategy needs the stock client).

    Raises
    ------
    ExperimentError
        When nothing or an unknown short name is given.
    """
    if method is not None and method not in BUILT_IN:
        raise ExperimentError(
            f"[experiment] method '{method}' is not a built-in; known: {', '.join(sorted(BUILT_IN))}. "
            'For your own, give [experiment] strategy = "package.module:Class"'
        )
    if method is None and strategy is None:
        raise ExperimentError(
            f'[experiment] needs a method ({", ".join(sorted(BUILT_IN))}) or a strategy = "package.module:Class"'
        )
    known = BUILT_IN.get(method or "")
    name = known.name if known and strategy is None else str(strategy).rpartition(":")[2]
    return Method(
        name=name,
        title=known.title if known and strategy is None else name,
        strategy=strategy or (known.strategy if known else ""),
        client=client or (known.client if known else ""),
        needs=known.needs if known else "",
        paper=known.paper if known and strategy is None else "",
        own_models=known is not None and known.own_models,
        defaults=known.defaults if known and strategy is None else {},
    )
