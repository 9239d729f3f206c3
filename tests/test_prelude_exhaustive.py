"""The prelude's own polynomials at every f32 number, against libm in f64; f64 and the power at random numbers.

Half an hour on one core. The worst error of each word is printed (`-s` shows it) and held against its bound.
"""

import re
import subprocess
from pathlib import Path

import pytest
from prelude_loops import OWN, VARIANTS, WIDEST, compile_c
from test_prelude import OWN_F32_ULPS

pytestmark = pytest.mark.slow

HARNESS = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "prelude.h"

/* Units in the last place of a number of `mantissa` bits; infinite for a wrong NaN, infinity or sign. */
static double ulps(long double got, long double want, long double rounded, int mantissa, int least) {
    if (isnan(got) || isnan(rounded)) return isnan(got) && isnan(rounded) ? 0 : INFINITY;
    if (!signbit(got) != !signbit(rounded)) return INFINITY;
    if (isinf(got) || isinf(rounded)) return got == rounded ? 0 : INFINITY;
    int exponent = want == 0 ? least : ilogbl(want);
    return (double)ldexpl(fabsl(got - want), mantissa - (exponent < least ? least : exponent));
}
static double ulps32(float got, double want) { return ulps(got, want, (float)want, 23, -126); }
static double ulps64(double got, long double want) { return ulps(got, want, (double)want, 52, -1022); }

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static long double sigmoidl(long double x) { return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x)); }

static double worst;
static void note(const char *word, double error, double x, double y, double got) {
    if (error <= worst) return;
    worst = error;
    if (error == INFINITY) printf("%s(%a, %a) gives %a\n", word, x, y, got);
}
static uint64_t state = 88172645463325252u;
static uint64_t draw(void) { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }

/* Whether there is nothing to note: NaN where it must be, or the nearest float once half a unit has been seen. */
static int nearest(float got, double want) {
    float rounded = (float)want;
    return (got != got && want != want) || (worst >= 0.5 && !memcmp(&got, &rounded, 4));
}
#define EVERY_FLOAT(word, libm)                                                  \
    if (!strcmp(name, #word))                                                    \
        for (uint64_t u = 0; u < 1ull << 32; u += W) {                           \
            float x[W], r[W];                                                    \
            for (uint32_t i = 0; i < W; i++) memcpy(x + i, &(uint32_t){(uint32_t)u + i}, 4); \
            store_f32(r, w_##word##_f32(load_f32(x)));                           \
            for (int i = 0; i < W; i++) {                                        \
                double want = libm((double)x[i]);                                \
                if (!nearest(r[i], want)) note(#word, ulps32(r[i], want), x[i], 0, r[i]); \
            }                                                                    \
        }
#define RANDOM_DOUBLES(word, libm)                                               \
    if (!strcmp(name, #word "64"))                                               \
        for (int64_t k = 0; k < COUNT; k += W) {                                 \
            double x[W], r[W];                                                   \
            for (int i = 0; i < W; i++) {                                        \
                uint64_t bits = draw();                                          \
                memcpy(x + i, &bits, 8);                                         \
                if (k / W % 2) x[i] = 40 * ((double)(int64_t)draw() * 0x1p-63);  \
            }                                                                    \
            store_f64(r, w_##word##_f64(load_f64(x)));                           \
            for (int i = 0; i < W; i++) note(#word, ulps64(r[i], libm((long double)x[i])), x[i], 0, r[i]); \
        }
static void powers(void) {
    for (int64_t k = 0; k < COUNT; k += W) {
        float x[W], y[W], r[W];
        for (int i = 0; i < W; i++) {
            uint32_t a = (uint32_t)draw(), b = (uint32_t)draw();
            memcpy(x + i, &a, 4), memcpy(y + i, &b, 4);
            if (k / W % 2) /* where the result is an ordinary number */
                x[i] = expf((float)(int64_t)draw() * 0x1.4p-58f), y[i] = (float)(int64_t)draw() * 0x1p-61f;
        }
        store_f32(r, w_pow_f32(load_f32(x), load_f32(y)));
        for (int i = 0; i < W; i++) note("pow", ulps32(r[i], pow(x[i], y[i])), x[i], y[i], r[i]);
    }
}
int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    EVERY_FLOATS
    RANDOM_DOUBLES(exp, expl)
    RANDOM_DOUBLES(log, logl)
    RANDOM_DOUBLES(sigmoid, sigmoidl)
    if (!strcmp(name, "pow")) powers();
    printf("worst %.4f\n", worst);
    return 0;
}
"""
COUNT = 100_000_000
BOUNDS = {**OWN_F32_ULPS, "pow": 0.6, "exp64": 1.1, "log64": 1.1, "sigmoid64": 2}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = HARNESS.replace("EVERY_FLOATS", " ".join(f"EVERY_FLOAT({w}, {w})" for w in OWN))
    return compile_c(VARIANTS[WIDEST], source, tmp_path_factory.mktemp("exhaustive") / "sweep", f"-DCOUNT={COUNT}")


@pytest.mark.parametrize("word", BOUNDS)
def test_worst_error(program: Path, word: str) -> None:
    out = subprocess.run([program, word], capture_output=True, text=True, check=True).stdout
    found = re.search(r"worst (\S+)", out)
    assert found, out
    print(f"{word}: {found[1]} ulp")
    assert float(found[1]) <= BOUNDS[word], out
