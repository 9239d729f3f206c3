"""PyTorch's own operator samples through the whole backend: some operators each time, every one behind `slow`."""

import pytest
import torch
from opinfo import cases, names, outcome

# AOTAutograd traces dropout of p = 1 as native_dropout, which draws numbers where eager mode draws none.
NOT_AS_EAGER = ("nn.functional.dropout",)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("name", names(torch.float32)[::12])
def test_some_samples(name: str) -> None:
    assert not outcome(list(cases(name, torch.float32, 2))).wrong


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted({n for d in DTYPES for n in names(d)} - {*NOT_AS_EAGER}))
def test_samples(name: str, dtype: torch.dtype) -> None:
    if name not in names(dtype):
        pytest.skip(f"{name} has no samples of {dtype}")
    assert not outcome(list(cases(name, dtype, 6))).wrong
