"""PyTorch's own sample inputs, forward and backward: every operator whose rows claim it, in each number type.

Each sample is traced; every node that has a row is run by itself on the inputs it had in eager and compared. An
operator outside MAY_FALL_BACK that runs by ATen for want of a row fails: nothing falls back silently. The quick part
of this is test_ops_table.py: one such sample for each operator, kept in a file.
"""

import warnings
from collections.abc import Iterator

import pytest
import torch
from samples import check_nodes, op_database, samples, with_backward, without_row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PARTS = 6
LARGEST = 4000  # elements of a sample's inputs: the interpreter is slow

# What cannot be traced with fake tensors, or is not meant to be (its size or its code depends on the data).
UNTRACEABLE = (
    *("sparse.", "to_sparse", "jiterator", "allclose", "equal", "corrcoef", "cov", "tensor_split", "linalg.lstsq"),
    *("nn.functional.gaussian_nll_loss", "nn.functional.one_hot", "item", "cdouble", "cfloat", "chalf", "ormqr"),
)
# Operators some of whose samples are library calls, and the reason that is given.
MAY_FALL_BACK = (
    *("fft.", "stft", "istft", "complex", "polar", "view_as_complex", "linalg.eig"),  # complex numbers
    *(
        "as_strided",
        "put",
        "index_put",
        "scatter",
        "index_add",
        "narrow",
        "repeat_interleave",
        "unique",
        "combinations",
    ),
    *("nn.functional.avg_pool", "nn.functional.local_response_norm", "nextafter", "linspace", "logspace"),
    *("native_batch_norm", "nn.functional.batch_norm", "nn.functional.instance_norm"),  # running statistics in place
    *("polygamma", "special.polygamma", "tril_indices", "triu_indices", "signal.windows", "searchsorted", "isin"),
    *("nn.functional.linear_cross_entropy", "nn.functional.multilabel_margin_loss", "nn.functional.interpolate"),
    *("nn.functional.upsample", "nn.functional.grid_sample", "grid_sampler_2d", "nn.functional.pad", "index_fill"),
    *("nn.functional.embedding", "bucketize", "masked_select", "argwhere", "nonzero", "torch.ops"),
)


def names(part: int) -> list[str]:
    """A share of the operators that can be traced."""
    return sorted(n for n in op_database() if not n.startswith(UNTRACEABLE))[part::PARTS]


def failures(part: int, dtype: torch.dtype, limit: int | None, backward: bool) -> Iterator[str]:
    """What is wrong with the rows of a share of the operators."""
    for name in names(part):
        info = op_database()[name]
        grad = backward and info.supports_autograd and dtype in info.backward_dtypes
        if dtype not in info.dtypes or (backward and not grad):
            continue
        for fn, inputs in samples(name, dtype, limit, grad):
            if sum(t.numel() for t in inputs) > LARGEST:
                continue
            try:
                graph = check_nodes(with_backward(fn, inputs) if grad else fn, *inputs)
            except AssertionError as error:
                yield f"{name}: {error}"
                continue
            missing = without_row(graph)
            if missing and not name.startswith(MAY_FALL_BACK):
                yield f"{name} falls back: {missing}"


def check(part: int, dtype: torch.dtype, limit: int | None, backward: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = list(failures(part, dtype, limit, backward))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("part", range(PARTS))
def test_fp32_both_ways(part: int) -> None:
    check(part, torch.float32, 4, True)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_forward(dtype: torch.dtype, part: int) -> None:
    check(part, dtype, 1, False)
