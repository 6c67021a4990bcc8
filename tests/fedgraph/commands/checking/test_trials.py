import torch

from fedgraph.commands.checking.trials import Finished


def finished(change=0.0, sha="x", loss=1.0, **tensors):
    summary = {"weights_sha256": sha, "metrics": {}, "per_client": {"test": {"loss": {"a": loss, "b": None}}}}
    return Finished(summary, tensors or {"w": torch.ones(3) + change})


def alike(one, other):
    return one.same(other), one.close(other)


def test_runs_are_the_same_bit_for_bit_close_or_neither():
    whole = finished()
    assert alike(finished(), whole) == (True, True)
    assert alike(finished(sha="y"), whole) == (False, True)
    assert alike(finished(1e-6), whole) == (False, True)
    for other in (finished(1e-2), finished(float("nan")), finished(w=torch.ones(4)), finished(v=torch.ones(3))):
        assert alike(other, whole) == (False, False)


def test_runs_without_weights_are_compared_by_what_was_measured(tmp_path):
    class Folder:
        path, checkpoint = tmp_path, tmp_path / "checkpoint.safetensors"

        def __init__(self, loss):
            self.summary = lambda: finished(sha=str(loss), loss=loss).summary

    one, close, far = (Finished.of(Folder(loss), changed=False) for loss in (1.0, 1.000001, 1.1))
    assert [alike(other, one) for other in (one, close, far)] == [(True, True), (False, True), (False, False)]
