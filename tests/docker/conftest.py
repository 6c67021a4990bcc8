"""Containers are started when they are asked for, with ``-m docker``, and by no other choice of tests."""

from contextlib import ExitStack

import pytest
from containers import NoEngineError, engine_at_hand


def pytest_collection_modifyitems(config, items):
    if "docker" not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("docker")])
        items[:] = [item for item in items if not item.get_closest_marker("docker")]


@pytest.fixture(scope="session")
def engine():
    """A container engine; what needs one skips where there is none."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(engine_at_hand())
        except NoEngineError as reason:
            pytest.skip(str(reason))
        yield found
