"""The digits are those of scikit-learn, which is not imported for them."""

import subprocess
import sys

import numpy as np
import pytest

from fedgraph.data.images import image_files as digits
from fedgraph.support.errors import DataError


@pytest.fixture
def afresh():
    digits.read_digits.cache_clear()
    yield
    digits.read_digits.cache_clear()


def test_they_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bunch, (images, labels) = load_digits(), digits.read_digits()
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(labels, bunch.target)


def test_nothing_of_it_is_imported():
    script = (
        "import sys; from fedgraph.data.images.image_files import read_digits; read_digits(); "
        "print('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


def test_without_scikit_learn_or_its_file(afresh, monkeypatch, tmp_path):
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        digits.read_digits()

    class Elsewhere:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(digits, "find_spec", lambda name: Elsewhere)
    with pytest.raises(DataError, match=r"digits\.csv\.gz"):
        digits.read_digits()
