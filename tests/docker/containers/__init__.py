"""Helpers of the container tests: an engine, the base images, and the compose files run on them."""

from containers.engine import Engine, NoEngineError
from containers.image import IMAGE, SECRET, build
from containers.project import Project
from containers.providing import engine_at_hand

__all__ = ["IMAGE", "SECRET", "Engine", "NoEngineError", "Project", "build", "engine_at_hand"]
