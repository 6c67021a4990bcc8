"""FedNGM in custom Flower apps: a ClientApp for a data frame, whose rows stay here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgraph.algorithms.fedngm_app_words import errors_in_app_words
from fedgraph.algorithms.fedngm_messages import PhaseRequest
from fedgraph.clients.app import Mod, answered
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.clients.fedngm import FedNGMClient
from fedgraph.clients.mods import node_client_name
from fedgraph.data.tables import ClientTableSettings, FrameTables
from fedgraph.messages import RUN_KEY, unpacking_request
from fedgraph.messages.queries import PERSONAL, is_for_personal_models
from fedgraph.support.errors import IdentityError, ReplyError
from fedgraph.support.files import file_name
from fedgraph.support.settings import parse
from fedgraph.support.untrusted import read_json
from fedgraph.training import TrainSettings

_CONSENT = ("ranges", "sums")
_ASKED = {"statistics": "ranges", "keys": "sums", "sums": "sums"}
"""Statistics that phases send."""


def table_client_app(
    load: Callable[[Context], Any],
    *,
    consent: Sequence[str] = (),
    share_models: bool = False,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that serves a strategy FedNGM from a data frame.

    The client's name is its node config ``client``, else its ``partition-id``. Names and types of features, numbers of
    rows, graphs and parameters of models leave it, but no rows. Raises ValueError for unknown consent.

    Parameters
    ----------
    load : callable
        Given Flower's context, returns the data frame of the client (pandas, polars or pyarrow).
    consent : sequence of {"ranges", "sums"}
        Statistics that may leave the client on request: ranges of numbers, sums over rows.
    share_models : bool
        Whether the client's personal model, which contains information on private features, may leave it on request. It
        is stored in the folder ``model-dir`` of the node config in any case.
    mods : sequence of callable
        Mods of Flower, outermost first.

    Examples
    --------
    A whole ``client_app.py``::

        import pandas
        from fedgraph.clients import table_client_app

        def load(context):
            return pandas.read_csv(f"hospital-{context.node_config['partition-id']}.csv")

        app = table_client_app(load, consent=["ranges"])
    """
    consents = [consent] if isinstance(consent, str) else list(consent)
    if unknown := sorted(set(consents) - set(_CONSENT)):
        raise ValueError(f"unknown consent: {', '.join(unknown)}; known are {' and '.join(_CONSENT)}")

    def answer(message: Message, context: Context) -> Message:
        def reply(node: Node) -> RecordDict:
            table_node = TableNode.from_frame(node, context, load, tuple(consents))
            with errors_in_app_words():
                return table_node.personal_model(message.content, share_models) or table_node.phase(message.content)

        return answered(message, context, reply)

    app = ClientApp(mods=list(mods))
    app.query()(answer)
    return app


@dataclass(frozen=True)
class TableNode(Node):
    """A node with a single client that has a data frame."""

    client: str = ""
    load: Callable[[], Any] = dict
    consent: tuple[str, ...] = ()

    @property
    def agreement(self) -> None:
        """None: the app is the site's own."""
        return None

    @classmethod
    def from_frame(
        cls, node: Node, context: Context, load: Callable[[Context], Any], consent: tuple[str, ...]
    ) -> TableNode:
        """Build the node of a context."""
        return cls(
            node.config,
            node.data_dir,
            node.state_dir,
            node.model_dir,
            None,
            node.done,
            node.states,
            node.attempts,
            node_client_name(context),
            lambda: load(context),
            consent,
        )

    def phase(self, content: RecordDict) -> RecordDict:
        """Return the client's answer in a phase.

        Raises IdentityError for statistics that the app does not send.
        """
        request = PhaseRequest.unpack(content)
        tables = read_json(request.experiment, "the experiment of the request")
        with unpacking_request():
            seed, method, table = int(tables["seed"]), dict(tables["method"]), dict(tables["table"])
        settings = parse(ClientTableSettings, table, "the table of the request")
        assignment = Assignment(seed, settings, {}, TrainSettings(), method, None)
        client, asked = FedNGMClient(self, request, assignment), _ASKED.get(request.phase)
        if asked in client.settings.disclosed and asked not in self.consent:
            raise IdentityError(
                f"the strategy asks for {asked} of the data, which this client does not send: "
                f'table_client_app(consent=["{asked}"])'
            )
        return client.reply().pack()

    def personal_model(self, content: RecordDict, shared: bool) -> RecordDict | None:
        """Return the client's personal model of a run, or None if it is not requested.

        Raises IdentityError when the app does not share it.
        """
        if not is_for_personal_models(content):
            return None
        if not shared:
            raise IdentityError("this client does not share its personal model (table_client_app, share_models)")
        with unpacking_request():
            config: Any = content.config_records["config"]
            run = file_name(str(config[RUN_KEY]))
        path = self.model_dir / "graphical" / run / f"{file_name(self.client)}.safetensors"
        if not path.is_file():
            raise ReplyError("this client has no personal model of the run")
        return RecordDict({"config": ConfigRecord({"clients": [self.client], PERSONAL: path.read_bytes()})})

    def source(self, assignment: Assignment) -> FrameTables:
        """Return the data frame as a data set."""
        assert isinstance(assignment.data, ClientTableSettings)
        return FrameTables(assignment.data, self.client, self.load)

    def hosted(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the client."""
        return (self.client,)

    def partition(self) -> None:
        """Return None: the node names its client."""
        return None
