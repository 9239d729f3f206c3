"""The C target's small change: names, numbers, words, and the lines that stand before every module."""

import math
import re
from collections.abc import Sequence

from ridgeline.base.errors import BuildFailed
from ridgeline.ir.types import BOOL, F8E4M3, F8E5M2, DType
from ridgeline.ir.words import WORDS

WORDS_SPELLED = frozenset(WORDS) - {"philox"}
# Names that C, the prelude or this file uses; axes keep clear of them.
TAKEN = re.compile(
    r"(auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|int|long|register|return"
    r"|short|signed|sizeof|static|struct|switch|typedef|union|void|while|unsigned|volatile|inline|restrict|asm|typeof"
    r"|scratch|base|workers|buffers|sizes|half|v\d+)$|[A-Z]|[pnkvwexh]_|f\d+[a-f]"
)
LANE_FOLDS = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin", "any": "hany", "all": "hall"}
SUPPORT = """\
#include <stdlib.h>
#ifdef _OPENMP
int omp_get_max_threads(void);
int omp_get_thread_num(void);
#else
#define omp_get_max_threads() 1
#define omp_get_thread_num() 0
#endif
FN v_b first_lanes(int n) { return w_lt_i32((v_i32){LANES}, splat_i32(n)); }
FN v_i64 x_floor_by(v_i64 a, int64_t d) {
    return cast_f64_i64(w_floor_f64(w_div_f64(cast_i64_f64(a), splat_f64((double)d))));
}
FN v_i64 x_mod_by(v_i64 a, int64_t d) { return w_sub_i64(a, w_mul_i64(x_floor_by(a, d), splat_i64(d))); }
FN int64_t x_min(int64_t a, int64_t b) { return a < b ? a : b; }
int ridgeline_run(int64_t n, int (**functions)(void **, const int64_t *), void ***buffers, const int64_t **sizes) {
    int failed = 0;
    for (int64_t i = 0; i < n && !failed; i++) failed = functions[i](buffers[i], sizes[i]);
    return failed;
}
"""


def suffix(dtype: DType) -> str:
    """The prelude's name of a number type."""
    if dtype in (F8E4M3, F8E5M2):
        raise BuildFailed("c", f"number type {dtype} is not spelled")
    return "b" if dtype is BOOL else dtype.name


def identifier(name: str) -> str:
    """A C name for a name of ours, to stand after a prefix."""
    return re.sub(r"\W", "_", name)


def pointer_name(buffer: str) -> str:
    return "p_" + identifier(buffer)


def size_name(symbol: str) -> str:
    return "n_" + identifier(symbol)


def word(name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
    """A word applied to vectors."""
    if name not in WORDS_SPELLED:
        raise BuildFailed("c", f"word {name} is not spelled")
    t = suffix(dtypes[1] if name == "select" else dtypes[0])
    if name.startswith("round_"):  # these are of f32, through which f64 is rounded as ATen does
        return f"{name}({args[0]})" if t == "f32" else f"cast_f32_{t}({name}(cast_{t}_f32({args[0]})))"
    return f"{'select' if name == 'select' else 'w_' + name}_{t}({', '.join(args)})"


def literal(number: bool | int | float, dtype: DType) -> str:
    """A number in C."""
    if dtype is BOOL:
        return str(int(number))
    if not dtype.is_float:
        bits = int(number)
        if dtype.kind == "u":
            return f"{bits % 2 ** (8 * dtype.bytes)}u" if dtype.bytes < 8 else f"UINT64_C({bits % 2**64})"
        if bits == -(2**63):
            return "INT64_MIN"
        return f"INT64_C({bits})" if dtype.bytes == 8 else str(bits)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(float(number)) + ("f" if dtype.bytes == 4 else "")
