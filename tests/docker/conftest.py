"""What the container tests share: the engine and the image."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from containers import NoEngineError, build, engine_at_hand


def pytest_collection_modifyitems(config, items):
    """Containers are started when they are asked for, with ``-m docker``, and by no other choice of tests."""
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


@pytest.fixture(scope="session")
def image(engine, tmp_path_factory):
    """The name of the image, built of the sources as they are."""
    return build(engine, tmp_path_factory.mktemp("checkout"))
