import pytest
import torch

from fedgraph.threads import pinned_threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pinned_within_and_restored_after(count):
    with pinned_threads(count):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 2


def test_restored_after_an_error_and_when_nested():
    with pinned_threads(1):
        with pytest.raises(ZeroDivisionError), pinned_threads(3):
            assert torch.get_num_threads() == 3 / 0
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_run_trains_with_the_threads_of_the_experiment_and_restores_them(digits_tables, run_experiment):
    from clients.app import app as client_app

    seen = []

    def serve(message, context):
        seen.append(torch.get_num_threads())
        return client_app(message, context)

    digits_tables["experiment"]["rounds"] = 0
    run_experiment(digits_tables, client=serve)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
