"""Messages of a step of vertical federated learning.

One exchange carries the gradient of the last minibatch and the request for the embeddings of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.messages import (
    KEEP_KEY,
    ROUND_KEY,
    Request,
    checked_arrays,
    from_record,
    to_record,
    unpacking_reply,
    unpacking_request,
)
from fedgraph.models import usable_rows
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import in_short


@dataclass(frozen=True)
class StepRequest(Request):
    """Request to a node in one step.

    Attributes
    ----------
    owners : owners of this node, in the order of the rows of ``gradient``.
    step : number of the step, counted from 1.
    update : keys of the samples that ``gradient`` belongs to; none in the first step.
    gradient : gradient of the loss with respect to the embeddings sent last, float32 ``[owners, len(update), size]``.
    embed : keys of the samples to embed after the update.
    training : whether these are a minibatch of training.
    keep_from : owners may drop state of steps before this one.
    """

    owners: tuple[str, ...]
    step: int
    update: tuple[str, ...]
    gradient: Tensor
    embed: tuple[str, ...]
    training: bool
    keep_from: int

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord(
            {
                **self.header(),
                ROUND_KEY: self.step,
                "owners": list(self.owners),
                "update": list(self.update),
                "embed": list(self.embed),
                "training": self.training,
                KEEP_KEY: self.keep_from,
            }
        )
        return RecordDict({"config": config, "stacked": to_record({"gradient": self.gradient})})

    @classmethod
    def unpack(cls, content: RecordDict) -> StepRequest:
        """Read the request that a node received. Raises ReplyError when a part is missing."""
        with unpacking_request():
            config: Any = content.config_records["config"]
            for name in ("owners", "update", "embed"):
                if len(set(config[name])) < len(config[name]):
                    raise ReplyError(f"the request is malformed: '{name}' names something twice")
            return cls(
                **cls.read_header(config),
                owners=tuple(config["owners"]),
                step=int(config[ROUND_KEY]),
                update=tuple(config["update"]),
                gradient=from_record(content.array_records["stacked"])["gradient"],
                embed=tuple(config["embed"]),
                training=bool(config["training"]),
                keep_from=int(config[KEEP_KEY]),
            )


@dataclass(frozen=True)
class StepReply:
    """Requested embeddings, float32 ``[owners, samples, size]``; 0 where an owner lacks the sample."""

    owners: tuple[str, ...]
    embeddings: Tensor

    def pack(self) -> RecordDict:
        """Convert to Flower records."""
        config = ConfigRecord({"owners": list(self.owners)})
        return RecordDict({"config": config, "stacked": to_record({"embeddings": self.embeddings})})

    @classmethod
    def unpack(cls, content: RecordDict, owners: tuple[str, ...], shape: tuple[int, int, int]) -> StepReply:
        """Check the reply of the node that hosts ``owners``, with embeddings of this ``shape``, and unpack it.

        Raises ReplyError for other owners, other arrays or shapes, and numbers that are not finite or too large to
        compute with.
        """
        with unpacking_reply("the reply to a step"):
            config: Any = content.config_records["config"]
            named, record = config["owners"], content.array_records["stacked"]
        if named != list(owners):
            others = in_short(repr(named), 100)
            raise ReplyError(f"the reply is for {others}, but {', '.join(owners)} were asked")
        embeddings = checked_arrays(record, {"embeddings": shape})["embeddings"]
        if not bool(usable_rows(embeddings).all()):
            raise ReplyError(
                "the embeddings of the reply hold NaN, infinite or huge values; a smaller learning-rate may help"
            )
        return cls(owners, embeddings)
