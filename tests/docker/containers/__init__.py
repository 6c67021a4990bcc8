"""A container engine for the tests: the one that runs here, or else one that is started for them."""

from containers.engine import Engine
from containers.started import NoEngineError, engine_at_hand

__all__ = ["Engine", "NoEngineError", "engine_at_hand"]
