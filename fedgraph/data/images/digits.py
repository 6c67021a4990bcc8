"""The digits that come with scikit-learn, read without importing it.

The import would take seconds in every process that answers a message.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgraph.support.errors import DataError


@lru_cache(maxsize=1)
def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images ``[1797, 8, 8]`` with values from 0 to 16, and labels ``[1797]``, as ``load_digits`` returns them.

    Raises DataError when scikit-learn is not installed, or lacks the file.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(file, delimiter=",").astype(np.int64)
    except OSError:
        raise DataError(f"the digits come with scikit-learn, but there is no {file}: install it anew") from None
    return table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1]
