"""Rows sampled from a Bayesian network with a known graph."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedgraph.data.columns.table import Table
from fedgraph.data.encoding.values import as_table
from fedgraph.data.partition import client_names
from fedgraph.data.tables.bif import BayesianNetwork, Variable, read_bif
from fedgraph.data.tables.client_tables import ClientTableSettings, ClientTableSource
from fedgraph.support.errors import counted
from fedgraph.support.randomness import generator

# Parents, and the probability of "yes" where they are yes or no, in this order, the last parent varying fastest.
_ASIA = {
    "asia": ((), [0.01]),
    "tub": (("asia",), [0.05, 0.01]),
    "smoke": ((), [0.5]),
    "lung": (("smoke",), [0.1, 0.01]),
    "bronc": (("smoke",), [0.6, 0.3]),
    "either": (("lung", "tub"), [1.0, 1.0, 1.0, 0.0]),
    "xray": (("either",), [0.98, 0.05]),
    "dysp": (("bronc", "either"), [0.9, 0.8, 0.7, 0.1]),
}


class BayesianNetworkSettings(ClientTableSettings):
    """The ``[data]`` table with ``set = "bayesian-network"``: rows sampled from a network with a known graph.

    Attributes
    ----------
    path    : .bif or .bif.gz file, absolute or relative to the data folder; or ``asia``, the network of a chest clinic
              (Lauritzen and Spiegelhalter 1988), which needs no file.
    clients : names of the clients, or their number.
    rows    : number of rows of each client.
    public_rows : number of public rows.
    """

    set: Literal["bayesian-network"] = "bayesian-network"
    path: str
    clients: Annotated[int, Field(ge=1, le=100_000)] | tuple[str, ...] = 3
    rows: int = Field(default=1000, ge=1, le=10_000_000)
    public_rows: int = Field(default=0, ge=0, le=10_000_000)


class BayesianNetworkSource(ClientTableSource):
    """Rows drawn from a network, independently for each client."""

    settings: BayesianNetworkSettings

    def client_names(self) -> list[str]:
        """Return the names in the settings, or ``client-00`` and so on."""
        clients = self.settings.clients
        return client_names(clients) if isinstance(clients, int) else list(clients)

    def whole_table(self, name: str) -> Table:
        """Return the rows of one client."""
        return self._drawn(name, self.settings.rows)

    def public_table(self) -> Table | None:
        """Return the public rows, or None."""
        return self._drawn("", self.settings.public_rows) if self.settings.public_rows else None

    def describe(self) -> str:
        """Describe the data, e.g. ``alarm.bif.gz, 37 variables, 3 clients with 1,000 rows drawn for each``."""
        settings = self.settings
        facts = [Path(settings.path).name, f"{len(self.network.schema.features)} variables"]
        facts.append(
            f"{counted(len(self.client_names()), 'client')} with {counted(settings.rows, 'row')} drawn for each"
        )
        if settings.public_rows:
            facts.append(f"{counted(settings.public_rows, 'row')} public")
        return ", ".join(facts)

    @cached_property
    def network(self) -> BayesianNetwork:
        """The network that rows are sampled from."""
        if self.settings.path == "asia":
            return asia_network()
        return read_bif(self.data_dir / Path(self.settings.path).expanduser())

    def _drawn(self, name: str, rows: int) -> Table:
        draw = generator(self.settings.partition_seed, "network rows", name)
        values = self.network.sample(rows, draw)
        return as_table(values.double().numpy(), self.network.schema, Path(self.settings.path).name)


def asia_network() -> BayesianNetwork:
    """Return the built-in network of a chest clinic: eight variables with the values yes and no.

    Lauritzen, Spiegelhalter: Local Computations with Probabilities on Graphical Structures and Their Application to
    Expert Systems (J. R. Stat. Soc. B, 1988), table 1.
    """
    variables = {}
    for name, (parents, probabilities) in _ASIA.items():
        table = torch.tensor([[yes, round(1 - yes, 12)] for yes in probabilities], dtype=torch.float64)
        table = (table / table.sum(-1, keepdim=True)).reshape(*[2] * len(parents), 2)
        variables[name] = Variable(("yes", "no"), parents, table)
    return BayesianNetwork(variables)
