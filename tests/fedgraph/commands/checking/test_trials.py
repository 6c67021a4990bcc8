import torch

from fedgraph.commands.checking.trials import Finished


def finished(change=0.0, sha="x", loss=1.0, **tensors):
    summary = {"weights_sha256": sha, "metrics": {}, "per_client": {"test": {"loss": {"a": loss, "b": None}}}}
    return Finished(summary, tensors or {"w": torch.ones(3) + change})


def test_the_difference_of_runs_is_in_units_of_the_tolerance():
    assert finished().difference(finished()) == 0
    assert 0 < finished(1e-6, "y").difference(finished()) < 1
    assert finished(1e-2, "y").difference(finished()) > 1
    assert finished(float("nan"), "y").difference(finished()) == float("inf")
    assert 0 < finished(sha="y").difference(finished()) < 1
    assert finished(w=torch.ones(4)).difference(finished(sha="y")) == float("inf")


def test_runs_without_weights_are_compared_by_what_was_measured(tmp_path):
    class Folder:
        path, checkpoint = tmp_path, tmp_path / "checkpoint.safetensors"

        def __init__(self, loss):
            self.summary = lambda: finished(sha=str(loss), loss=loss).summary

    one, close, far = (Finished.of(Folder(loss), changed=False) for loss in (1.0, 1.000001, 1.1))
    assert one.difference(one) == 0
    assert 0 < close.difference(one) < 1 < far.difference(one)
