import numpy as np
import pytest

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tensorboard import TensorBoardTracker


def read(folder):
    return EventAccumulator(str(folder.path / "tensorboard"), size_guidance={"scalars": 0}).Reload()


def test_a_resumed_run_is_one_record(run_tracked, digits_tables):
    digits_tables["experiment"]["rounds"] = 5
    folder = run_tracked(["tensorboard"], stops=[4], **{"checkpoint-every": 2})
    events, summary = read(folder), folder.summary()
    assert [event.step for event in events.Scalars("training/loss/mean")] == [1, 2, 3, 4, 3, 4, 5]
    accuracy = events.Scalars("test/accuracy/mean")
    assert [event.step for event in accuracy] == [0, 1, 2, 3, 2, 3, 4, 5]
    expected = summary["metrics"]["test"]["accuracy"]["mean"]
    assert accuracy[-1].value == pytest.approx(expected)
    assert [event.value for event in events.Scalars("final/test/accuracy/mean")] == [pytest.approx(expected)]
    histogram = events.Histograms("test/accuracy/clients")[-1].histogram_value
    assert histogram.num == 6
    assert histogram.sum == pytest.approx(6 * expected)
    settings = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert settings.session_start_info.hparams["train.learning-rate"].number_value == 0.1
    (text,) = events.Tensors("parameters/text_summary")
    assert "| train.learning-rate | 0.1 |" in text.tensor_proto.string_val[0].decode()


def test_what_was_logged_is_on_disk_at_once(digits_tables, tmp_path):
    experiment = parse_experiment(digits_tables)
    folder = RunFolder.create(experiment, tmp_path)
    tracker = TensorBoardTracker(folder, experiment)
    for step in range(3):
        tracker.log_metrics({"loss": step / 2, "clients": {"a": 1.0, "b": 2.0}}, step)
        assert [event.value for event in read(folder).Scalars("loss")] == list(np.arange(step + 1) / 2)
    tracker.finalize("failed")
