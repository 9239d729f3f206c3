"""Accounts made by hand, for the tests of the views: a training step of a small GPT, and the emptiest one.

The figures of GPT are chosen, not measured: each kernel gives bytes, FLOP and seconds of one call; the plans hold the
sums, so that a view that adds them up another way shows it. It holds a case of everything a view must cope with:
unknown cost, unmeasured, uncalibrated and replayed kernels, a kernel above its limit, equal moves, an average number
of calls, and names that are not safe in HTML.
"""

from ridgeline.base.records import (
    Account,
    Break,
    Ceiling,
    Elsewhere,
    Finding,
    GraphAccount,
    KernelAccount,
    Limit,
    Measured,
    MoveAccount,
    Outside,
    Prediction,
    StepPlan,
    Work,
)

COPY, MATMUL, VECTOR, SPECIAL = 20e9, 180e9, 90e9, 1.5e9  # bytes/s, FLOP/s, FLOP/s, 1/s of the made-up machine
MODEL, UNSAFE = "/home/ada/gpt/model.py", "/home/ada/gpt/<b>&model.py"


def kernel(
    *,
    name: str,
    operators: str,
    phase: str,
    line: str | None,
    read: int,
    written: int,
    flops: float | None = 0.0,
    matmul: bool = False,
    special: float = 0.0,
    calls: float = 4,
    slower: float = 1.3,
    measured: float | None = 1.0,
    calibrated: bool = True,
    replayed: bool = False,
    kind: str = "kernel",
    reason: str | None = None,
    shapes: str | None = None,
) -> KernelAccount:
    """One kernel: predicted `slower` times its limit, measured `measured` times its prediction."""
    work = Work(
        read, written, None if flops is None else {"fp32": flops} if flops else {}, special,
        matmul_flops=flops if matmul and flops else 0,
    )  # fmt: skip
    resources = {"memory": (read + written) / COPY}
    if flops:
        resources["fp32 matmul" if matmul else "fp32"] = flops / (MATMUL if matmul else VECTOR)
    if special:
        resources["special functions"] = special / SPECIAL
    binds = max(resources, key=lambda r: resources[r])
    limit = Limit(resources[binds], binds, resources)
    seconds = limit.seconds * slower
    prediction = Prediction(seconds, max(seconds / 1.3, limit.seconds), seconds * 1.3, calibrated)
    timed = None if measured is None else Measured(seconds * measured, seconds * 0.04, 10, replayed)
    names = tuple(operators.split())
    return KernelAccount(
        name, kind, phase, names, line, calls, work, limit, prediction, timed, reason=reason, shapes=shapes
    )


ROWS, WIDTH, HIDDEN, WORDS = 4096, 192, 512, 256
TENSOR, WIDE = ROWS * WIDTH * 4, ROWS * HIDDEN * 4  # bytes of (rows, width) and (rows, hidden) in fp32
WIN = "the target needs no other"


def matmul(phase: str, line: str, columns: int, calls: float, **more: object) -> KernelAccount:
    """(rows, width) @ (width, columns) by the library."""
    return kernel(
        name=f"mm_{phase}_{columns}", operators="aten.mm.default", phase=phase, line=line, kind="library",
        read=TENSOR + WIDTH * columns * 4, written=ROWS * columns * 4, flops=2.0 * ROWS * WIDTH * columns, matmul=True,
        calls=calls, slower=1.12, shapes=f"fp32 ({ROWS}, {WIDTH}) @ ({WIDTH}, {columns})", **more,
    )  # type: ignore[arg-type]  # fmt: skip


FORWARD = (
    kernel(name="embed", operators="aten.embedding.default aten.embedding.default aten.add.Tensor", phase="forward",
           line=f"{MODEL}:93", read=ROWS * 8 + TENSOR, written=TENSOR, flops=ROWS * WIDTH, calls=1),
    kernel(name="norm", operators="aten._fused_rms_norm.default", phase="forward", line=f"{MODEL}:57",
           read=TENSOR, written=TENSOR, flops=4.0 * ROWS * WIDTH, special=ROWS, calls=9,
           shapes="fp32 (4096, 192) -> (4096, 192)"),
    matmul("forward", f"{MODEL}:27", 3 * WIDTH, 4),
    kernel(name="attention", operators="aten._scaled_dot_product_flash_attention_for_cpu.default", phase="forward",
           line=f"{MODEL}:29", read=3 * TENSOR, written=TENSOR, flops=4.0 * 16 * 256 * 256 * WIDTH / 2, matmul=True,
           special=16 * 6 * 256 * 256 / 2, kind="library", slower=1.6),
    matmul("forward", f"{MODEL}:43", 2 * HIDDEN, 4),
    kernel(name="swiglu", operators="aten.silu.default aten.mul.Tensor", phase="forward", line=f"{MODEL}:43",
           read=2 * WIDE, written=WIDE, flops=2.0 * ROWS * HIDDEN, special=2.0 * ROWS * HIDDEN, measured=0.74),
    kernel(name="residual", operators="aten.native_dropout.default aten.add.Tensor aten._fused_rms_norm.default",
           phase="forward", line=f"{MODEL}:62", read=2 * TENSOR, written=2 * TENSOR + ROWS * WIDTH,
           flops=6.0 * ROWS * WIDTH, special=ROWS, calls=8, calibrated=False),
    kernel(name="loss", operators="aten._log_softmax.default aten.nll_loss_forward.default", phase="forward",
           line="/home/ada/gpt/train.py:131", read=ROWS * WORDS * 4 + ROWS * 8, written=ROWS * 4,
           flops=3.0 * ROWS * WORDS, special=ROWS * WORDS, calls=1),
    kernel(name="scan", operators="mylib.scan.default", phase="forward", line=f"{UNSAFE}:7", read=TENSOR,
           written=TENSOR, flops=None, calls=1, kind="library", reason="no row in the table"),
)  # fmt: skip
BACKWARD = (
    kernel(name="loss_backward", operators="aten.nll_loss_backward.default aten._log_softmax_backward_data.default",
           phase="backward", line="/home/ada/gpt/train.py:131", read=ROWS * WORDS * 4, written=ROWS * WORDS * 4,
           flops=3.0 * ROWS * WORDS, special=ROWS * WORDS, calls=1, replayed=True),
    matmul("backward", f"{MODEL}:43", 4 * HIDDEN, 4),
    kernel(name="swiglu_backward", operators="aten.mul.Tensor aten.mul.Tensor aten.silu_backward.default",
           phase="backward", line=f"{MODEL}:43", read=3 * WIDE, written=2 * WIDE, flops=8.0 * ROWS * HIDDEN,
           special=2.0 * ROWS * HIDDEN),
    matmul("backward", f"{MODEL}:27", 6 * WIDTH, 4, measured=None),
    kernel(name="norm_backward", operators="aten._fused_rms_norm_backward.default aten.add.Tensor", phase="backward",
           line=f"{MODEL}:57", read=3 * TENSOR, written=TENSOR, flops=9.0 * ROWS * WIDTH, calls=9),
    kernel(name="weight_norm", operators="aten._fused_rms_norm_backward.default", phase="backward", line=f"{MODEL}:57",
           read=2 * TENSOR, written=WIDTH * 4, flops=3.0 * ROWS * WIDTH, calls=9),
)  # fmt: skip
WEIGHTS = 2_000_000
OPTIMIZER = (
    kernel(name="adamw", operators="aten.lerp.Scalar aten.mul.Tensor aten.addcmul.default aten.sqrt.default "
           "aten.div.Tensor aten.add.Tensor aten.addcdiv.default", phase="optimizer",
           line="/home/ada/gpt/train.py:140", read=16 * WEIGHTS, written=12 * WEIGHTS, flops=12.0 * WEIGHTS,
           special=2.0 * WEIGHTS, calls=2.5),
)  # fmt: skip


def eager(kernels: tuple[KernelAccount, ...]) -> tuple[KernelAccount, ...]:
    """Each operator of a kernel as one of its own, that reads what the last one wrote."""
    return tuple(
        kernel(name=operator, operators=operator, phase=k.phase, line=k.line, read=k.work.bytes_read,
               written=k.work.bytes_written, calls=k.calls, kind="eager", slower=1.4, measured=1.05,
               flops=None if k.work.flops is None else k.work.total_flops if number == 0 else 0.0,
               matmul=k.work.matmul_flops > 0)
        for k in kernels if k.work is not None for number, operator in enumerate(k.operators)
    )  # fmt: skip


def seconds(kernels: tuple[KernelAccount, ...]) -> float:
    return sum(k.calls * k.prediction.seconds for k in kernels if k.prediction is not None)


def moved(kernels: tuple[KernelAccount, ...]) -> int:
    return round(sum(k.calls * k.work.bytes for k in kernels if k.work is not None))


def flops(kernels: tuple[KernelAccount, ...]) -> float:
    return sum(k.calls * (k.work.total_flops or 0.0) for k in kernels if k.work is not None)


def graph(name: str, root: str, kernels: tuple[KernelAccount, ...], moves: tuple[MoveAccount, ...]) -> GraphAccount:
    need = sum((k.limit.seconds * k.calls for k in kernels if k.limit is not None), 0.0) * 0.8
    limit = Limit(need, "memory", {"memory": need * 0.6, "fp32 matmul": need * 0.4})
    return GraphAccount(
        name, root, kernels[0].phase, f"{MODEL}:88", 40 * len(kernels), 1, 1.25 * len(kernels), kernels,
        eager(kernels), moves, limit, Work(1 << 28, 1 << 27), 900 << 20, 610 << 20,
    )  # fmt: skip


NORMED = "aten.native_dropout.default, aten.add.Tensor, aten._fused_rms_norm.default"
MOVES = (
    *(
        MoveAccount("drop store", True, NORMED, f"{MODEL}:62", 2.0 * TENSOR, 0.31e-3,
                    "the normalised rows stay in registers")
        for _ in range(8)
    ),
    MoveAccount("drop store", True, "aten.silu.default, aten.mul.Tensor", f"{MODEL}:43", 2.0 * WIDE, 0.84e-3,
                "silu stays in registers"),
    MoveAccount("share read", True, "<img src=x>, mul", f"{UNSAFE}:9", 1.0 * WIDE, 0.42e-3,
                "both read the same tensors"),
    MoveAccount("drop store", False, "mm", f"{MODEL}:43", 4.0 * WIDE, 1.7e-3,
                "its readers run after a library call, and this sentence is long enough to need a second line"),
    MoveAccount("drop store", False, "_log_softmax", "/home/ada/gpt/train.py:131", 4.0 * ROWS * WORDS, 0.2e-3,
                "backward needs it"),
)  # fmt: skip
GRAPHS = (
    graph("forward_0", "GPT.forward, cross_entropy", FORWARD, MOVES),
    graph("backward_0", "GPT.forward, cross_entropy", BACKWARD, ()),
    graph("adamw_0", "AdamW.step", OPTIMIZER, ()),
)
KERNELS = FORWARD + BACKWARD + OPTIMIZER
FLOPS = flops(KERNELS)  # what every view must show: the known part of the graph plan
EAGER_S, GRAPH_S = seconds(eager(KERNELS)) * 1.08, seconds(KERNELS) * 1.02 + 3e-3
MEASURED_S = sum(k.calls * k.measured.seconds for k in KERNELS if k.measured is not None)
LIMIT_S = sum(g.limit.seconds for g in GRAPHS if g.limit is not None)

GPT = Account(
    schema_version=1,
    script="examples/train_<gpt>.py",
    device_id="this-machine",
    device_name="Xeon Platinum, 2 cores & one script",
    versions={"ridgeline": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.2"},
    steps_seen=25,
    steps_timed=20,
    graphs=GRAPHS,
    breaks=(
        Break("graph break", "Tensor.item() gives a Python number, so the graph ends here", f"{MODEL}:91", 2),
        Break("recompile", "size of x[0] changed: 16 -> 7", None),
    ),
    outside=(
        Outside("aten.randint.low", "/home/ada/gpt/train.py:114", 1, 128, 12e-6),
        Outside("aten.index.Tensor", "/home/ada/gpt/train.py:115", 1, 65_792, 95e-6),
        Outside("aten.<script>alert(1)</script>.default", "/home/ada/data/model.py:3", 0.25, None, None),
    ),
    plans=(
        StepPlan("eager", seconds(eager(KERNELS)), Measured(EAGER_S, 4e-3, 10), moved(eager(KERNELS)), 231, 900 << 20,
                 flops(eager(KERNELS))),
        StepPlan("graph", seconds(KERNELS), Measured(GRAPH_S, 1.1e-3, 10), moved(KERNELS), 88, 610 << 20, FLOPS),
        StepPlan("limit", LIMIT_S, None, round(moved(KERNELS) * 0.8), None, None, FLOPS),
    ), 
    remainder_s=GRAPH_S - MEASURED_S,
    elsewhere=(
        Elsewhere("h100-sxm", 3.9e-3, 1.1e-3, 0.62e-3, "memory", True),
        Elsewhere("b200", 3.1e-3, 0.74e-3, 0.31e-3, "memory", True, "uncalibrated"),
        Elsewhere("tpu-v2", None, None, None, None, None, "no fp32 rate known"),
    ),
    findings=(
        Finding("Batch below the ridge", None, "Larger batches share each weight that is read.", None),
        Finding("28 matmuls in fp32", 0.041, "This device multiplies bf16 3.2 times as fast as fp32: put the forward "
                "in torch.autocast(\"cpu\", torch.bfloat16), or convert the model.", f"{MODEL}:27"),
        Finding("Graph break at .item()", 0.0009, "Take the number after the step, or keep it a tensor.",
                f"{MODEL}:91"),
    ),
    notes=("Losses of eager and compiled steps agree to 3e-7.",),
    ceilings=(
        Ceiling("memory", bytes_per_s=COPY),
        Ceiling("L3", bytes_per_s=61e9),
        Ceiling("fp32", flops_per_s=VECTOR),
        Ceiling("fp32 matmul", flops_per_s=MATMUL),
        Ceiling("int8 matmul", flops_per_s=700e9),
    ),
)  # fmt: skip

EMPTY = Account(
    schema_version=1, script="no_model.py", device_id="b200", device_name="B200", versions={}, steps_seen=0,
    steps_timed=0, graphs=(), breaks=(), outside=(), plans=(), remainder_s=None, elsewhere=(), findings=(),
)  # fmt: skip
