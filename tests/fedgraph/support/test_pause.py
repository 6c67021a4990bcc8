import importlib
import time

from fedgraph.support import pause
from fedgraph.support.pause import GrowingPause, ask_sooner


def test_it_grows_with_the_time_waited_to_its_longest(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: (slept.append(seconds), now.append(now.pop() + seconds)))
    waiting = GrowingPause(3.0)
    while now[0] < 60:
        waiting.sleep()
    assert slept[0] == pause._FIRST_SECONDS
    assert slept == sorted(slept)
    assert slept[-1] == 3.0
    assert sum(seconds < 3.0 for seconds in slept) < 20, "few looks for what takes long"
    waiting.sleep(at_most=0.5)
    assert slept[-1] == 0.5
    waiting.restart()
    waiting.sleep()
    assert slept[-1] == pause._FIRST_SECONDS


def test_an_object_that_is_still_arriving_is_soon_asked_for_again(monkeypatch):
    module = "flwr.supernode.start_client_internal"
    names = vars(importlib.import_module(module))
    monkeypatch.setitem(names, "pull_objects", names["pull_objects"])
    unavailable, asked = vars(importlib.import_module(names["pull_objects"].__module__))["ObjectUnavailableError"], []

    def pull(name):
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise unavailable(name)
        return b"content"

    for _ in range(2):
        ask_sooner(module)
    assert names["pull_objects"](["x"], pull) == {"x": b"content"}
    assert len(asked) == 3
    assert asked[-1] - asked[0] < 0.8  # Flower's own would have waited for a second, and then for two
