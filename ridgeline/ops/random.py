"""Random numbers: drawn by ATen, from the generator eager would use, so that every stream stays what it was.

Library rows that count no FLOPs. The backward of dropout is a pointwise row (ops/activations.py).
"""

from collections.abc import Mapping
from typing import Any

from ridgeline.ops.table import library


@library(
    *("aten.native_dropout.default", "aten._fused_dropout.default"),
    *(f"aten.bernoulli.{o}" for o in ("default", "p", "Tensor")),
    *("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator"),
    *("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator"),
    *(f"aten.randint.{o}" for o in ("default", "low", "generator", "low_generator")),
    *(f"aten.randint_like.{o}" for o in ("default", "low_dtype", "Tensor")),
    *("aten.randperm.default", "aten.randperm.generator", "aten.multinomial.default"),
    *(f"aten.normal.{o}" for o in ("Tensor_Tensor", "Tensor_float", "float_Tensor", "float_float")),
    *("aten.normal_functional.default", "aten.uniform.default", "aten.exponential.default", "aten.cauchy.default"),
    *("aten.geometric.default", "aten.log_normal.default", "aten.poisson.default", "aten.binomial.default"),
    *("aten._standard_gamma.default", "aten._sample_dirichlet.default", "aten.rrelu_with_noise_functional.default"),
    *(f"aten.random.{o}" for o in ("default", "from", "to")),
    random=True,
)
def drawn(*args: Any, **options: Any) -> Mapping[str, float]:
    """Numbers drawn from a generator: 0 FLOP."""
    return {}
