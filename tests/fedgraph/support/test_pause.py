import time

from fedgraph.support import pause
from fedgraph.support.pause import GrowingPause


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
