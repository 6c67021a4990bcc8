"""FedNGM in people's own apps: the request for the model of a single client, and its answer."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedgraph.messages.envelope import RUN_KEY, unpacking_reply
from fedgraph.support.errors import ReplyError

PERSONAL = "personal-model"
"""Key of the request, and of the model in the answer."""


def ask_for_personal_models(run: str) -> RecordDict:
    """Return the content of a request for each client's personal model of a run, by the name of the run."""
    return RecordDict({"config": ConfigRecord({PERSONAL: True, RUN_KEY: run})})


def is_for_personal_models(content: RecordDict) -> bool:
    """Return whether a message asks for personal models."""
    return PERSONAL in content.config_records.get("config", {})


def personal_model(content: RecordDict) -> tuple[str, bytes]:
    """Return the client, and its personal model as the bytes of a file, of an answer.

    Raises ReplyError for anything that is not such an answer.
    """
    with unpacking_reply("the answer with a personal model"):
        config: Any = content.config_records["config"]
        (client,), model = config["clients"], config[PERSONAL]
    if not isinstance(model, bytes):
        raise ReplyError("the answer has no file of a model")
    return str(client), model
