"""Messages of a strategy and any ClientApp in addition to Flower's model, configuration and metrics.

A config record ``fedgraph`` has a client's name and the settings of its loss; array records ``fedgraph.*`` have further
models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedgraph.messages.array_records import checked_arrays, to_record
from fedgraph.messages.content import check_content
from fedgraph.models import finite_rows, usable_rows
from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import LARGEST, check_name, in_short

APP_RECORD = "fedgraph"
"""Name of the config record."""
WHO_KEY = "who-are-you"
"""In a request: query only the name of the client."""
NAME_KEY = "client"
"""In a reply: the name of the client."""
TERMS_KEY = "terms"
"""In a reply: loss terms that the client has used."""
STOCK_TERMS = {"proximal-mu": "proximal-mu", "clipping-norm": "clipping_norm"}
"""Terms of Flower's strategies in local training: tensor of a request ``[clients]``, and Flower's key."""

_MOST_EXAMPLES = 1 << 40


def further_record(name: str) -> str:
    """Return the name of the array record with further models, or with a tensor."""
    return f"{APP_RECORD}.{name}"


def models_record(models: Sequence[Mapping[str, Tensor]]) -> ArrayRecord:
    """Return several models as one array record: ``0/weight``, ``0/bias``, ``1/weight``."""
    return to_record({f"{place}/{name}": value for place, model in enumerate(models) for name, value in model.items()})


def read_models(record: ArrayRecord, count: int, template: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Read ``count`` models with the shapes of ``template`` from what :func:`models_record` made.

    Raises ReplyError for anything else.
    """
    shapes = {f"{place}/{name}": tuple(value.shape) for place in range(count) for name, value in template.items()}
    read = checked_arrays(record, shapes, {name: record[name].dtype for name in shapes if name in record})
    return [{name: read[f"{place}/{name}"] for name in template} for place in range(count)]


def read_client(content: RecordDict) -> str | None:
    """Return the client's name in a reply, or None. Raises ReplyError for an invalid name."""
    record = content.config_records.get(APP_RECORD)
    if record is None or NAME_KEY not in record:
        return None
    check_name(record[NAME_KEY], "a client")
    return str(record[NAME_KEY])


def read_model(content: RecordDict, key: str, template: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read a trained model of a reply.

    Returns read-only views of the record's bytes in the order of the template. Raises ReplyError, which names the
    array, for missing, additional or different arrays, and for numbers that are not finite or above 1e15.

    Parameters
    ----------
    content : content of the reply, which is not trusted.
    key : name of its array record; ignored if there is only one.
    template : a model with the expected names, shapes and types.
    """
    check_content(content)
    records = {name: each for name, each in content.array_records.items() if not name.startswith(f"{APP_RECORD}.")}
    if key not in records and len(records) != 1:
        raise ReplyError(f"it has no array record '{key}'")
    record = records.get(key) or next(iter(records.values()))
    lacking, strange = (
        [name for name in template if name not in record],
        [name for name in record if name not in template],
    )
    if lacking or strange:
        found = [f"lacks layer '{name}'" for name in lacking[:1]] + [f"has layer '{name}'" for name in strange[:1]]
        raise ReplyError(f"its model {' and '.join(found)}, unlike the one that was sent")
    for name, value in template.items():
        if tuple(record[name].shape) != tuple(value.shape):
            raise ReplyError(
                f"layer '{name}' has the shape {tuple(record[name].shape)} in place of {tuple(value.shape)}"
            )
    shapes = {name: tuple(value.shape) for name, value in template.items()}
    read = checked_arrays(record, shapes, {name: record[name].dtype for name in shapes})
    for name, value in read.items():
        if value.is_floating_point() != template[name].is_floating_point() or value.is_complex():
            raise ReplyError(f"layer '{name}' is {value.dtype} in place of {template[name].dtype}")
        if value.is_floating_point() and not bool(usable_rows(value[None])):
            wrong = f"above {LARGEST:g}" if bool(finite_rows(value[None])) else "that are not finite"
            raise ReplyError(f"layer '{name}' has values {wrong}: has training diverged?")
    return read


def read_num_examples(content: RecordDict, key: str) -> float | None:
    """Return the weight of a client among the metrics of a reply, usually its number of examples, or None.

    Raises ReplyError for anything that is not a number from 0 on.
    """
    for record in content.metric_records.values():
        if key in record:
            count = record[key]
            if isinstance(count, list) or not 0 <= count < _MOST_EXAMPLES:
                raise ReplyError(f"'{key}' is {in_short(str(count), 50)}, which is no number of examples")
            return float(count)
    return None


def read_numbers(content: RecordDict, without: str) -> dict[str, float]:
    """Return the scalar metrics of a reply, without the number of examples."""
    return {
        in_short(name, 200): float(value)
        for record in content.metric_records.values()
        for name, value in record.items()
        if name != without and not isinstance(value, list)
    }


def asks_who(content: RecordDict) -> bool:
    """Return whether a request queries only the name of the client."""
    return WHO_KEY in content.config_records.get(APP_RECORD, ConfigRecord())
