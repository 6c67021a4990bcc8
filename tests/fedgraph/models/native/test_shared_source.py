"""Element-wise functions in C++ against those of PyTorch in double precision."""

import ctypes

import pytest
import torch

from fedgraph.models.native import loader as native
from fedgraph.models.native.shared_source import MATH

FUNCTIONS = {
    "exponential": (torch.exp, (-86.0, 87.0), 2),
    "sigmoid": (torch.sigmoid, (-80.0, 80.0), 4),
    "logarithm": (torch.log, (1e-30, 1e30), 2),
    "tanh_of": (torch.tanh, (-12.0, 12.0), 4),
}
LOOPS = "".join(
    f'extern "C" void many_{name}(int64_t n, const float* x, float* y) {{ for (int64_t k = 0; k < n; ++k) y[k] = '
    f"{name}(x[k]); }}\n"
    for name in FUNCTIONS
)


@pytest.fixture(scope="module")
def library():
    try:
        return native.load("math-test", MATH + LOOPS)
    except native.NativeError:
        pytest.skip("no C++ compiler")


def applied(library, name, values):
    found = torch.empty_like(values)
    addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (values, found))
    getattr(library, f"many_{name}")(ctypes.c_int64(len(values)), *addresses)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_right_to_so_many_units_in_the_last_place(library, name):
    function, (low, high), units = FUNCTIONS[name]
    values = torch.linspace(low, high, 100_001)
    if name == "logarithm":
        values = torch.cat([torch.logspace(-30, 30, 10_001), torch.linspace(0.5, 2, 10_001)])
    wanted = function(values.double())
    place = torch.finfo(torch.float32).eps * wanted.abs()
    assert ((applied(library, name, values).double() - wanted).abs() <= units * place).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_a_number_stays_so(library, name):
    assert applied(library, name, torch.full((40,), torch.nan)).isnan().all()
