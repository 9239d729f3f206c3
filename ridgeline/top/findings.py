"""What the user can change, ranked by the seconds a step would save, each with what to do.

Takes an account without findings; every figure comes from its records. A saving nobody can tell is None.
"""

from collections.abc import Iterator

from ridgeline.base.records import Account, Finding, KernelAccount
from ridgeline.base.totals import eager_operators, kernels, library_reasons
from ridgeline.base.units import format_s
from ridgeline.capture.steps import Run
from ridgeline.hw.device import Device

# A finding that would save less than this share of the step is not worth a line.
WORTH = 0.002
# A kernel whose limit is below this share of its launch floor only pays for being launched.
LAUNCH_BOUND = 0.5


def findings(account: Account, run: Run, device: Device) -> tuple[Finding, ...]:
    """All findings, most saved first."""
    step = account.plan("graph")
    least = WORTH * (step.seconds or 0.0) if step is not None else 0.0
    found = [
        *_breaks(account),
        *_formats(account, device),
        *_launches(account, device),
        *_batch(account, device),
        *_outside(account),
        *_optimizer(account, run),
        *_rows(account),
        *_failed(run),
    ]
    kept = [f for f in found if f.saved_s is None or f.saved_s > least]
    return tuple(sorted(kept, key=lambda f: -(f.saved_s or 0.0)))


def _breaks(account: Account) -> Iterator[Finding]:
    for b in account.breaks:
        advice = (
            "move this statement out of the captured call, or write it with tensor operators"
            if b.kind == "graph break"
            else "pad or bucket the inputs, or mark the changing size with torch._dynamo.mark_dynamic"
        )
        yield Finding(f"{b.kind}: {b.reason} ({b.count}x)", None, advice, b.line)


def _matmuls(account: Account) -> Iterator[KernelAccount]:
    return (k for k in kernels(account) if k.work is not None and k.work.matmul_flops)


def _formats(account: Account, device: Device) -> Iterator[Finding]:
    """fp32 matmuls where the device multiplies a narrower format faster."""
    slow = device.peak_flops_per_s("fp32", matrix=True)
    fast = device.peak_flops_per_s("bf16", matrix=True)
    if slow is None or fast is None or fast <= 1.2 * slow:
        return
    saved = 0.0
    line = None
    for k in _matmuls(account):
        flops = (k.work.flops or {}).get("fp32", 0.0) if k.work else 0.0
        if flops and k.limit is not None:
            now = k.limit.by_resource.get("fp32 matmul", 0.0)
            saved += max(now - max(flops / fast, k.limit.by_resource.get("memory", 0.0) / 2), 0.0) * k.calls
            line = line or k.line
    if saved:
        advice = "wrap the forward in torch.autocast(dtype=torch.bfloat16), or set_float32_matmul_precision('high')"
        yield Finding(f"matmuls run in fp32; this device does bf16 {fast / slow:.1f} times faster", saved, advice, line)


def _launches(account: Account, device: Device) -> Iterator[Finding]:
    floor = device.launch_s
    if floor is None:
        return
    small = [k for k in kernels(account) if k.limit is not None and k.limit.seconds < LAUNCH_BOUND * floor]
    count = sum(k.calls for k in small)
    if count >= 1:
        advice = "make the batch larger, or replay the step as one graph, so that launches cost less of it"
        yield Finding(f"{count:.0f} launches a step take longer to launch than to run", floor * count, advice)


def _batch(account: Account, device: Device) -> Iterator[Finding]:
    """Matmuls that wait for their weights."""
    bound = [
        k
        for k in _matmuls(account)
        if k.limit is not None and k.limit.binds in ("memory", *(level.name for level in device.levels))
    ]
    wasted = sum(
        (k.limit.seconds - max((s for n, s in k.limit.by_resource.items() if "matmul" in n), default=0.0)) * k.calls
        for k in bound
        if k.limit is not None
    )
    if wasted > 0:
        ridge = device.ridge("fp32" if device.kind == "cpu" else "bf16")
        point = f" (ridge: {ridge:.0f} FLOP per number)" if ridge else ""
        advice = f"a larger batch does more with each weight it loads{point}"
        yield Finding(f"{len(bound)} matmuls are below the ridge and wait for memory", wasted, advice, bound[0].line)


def _outside(account: Account) -> Iterator[Finding]:
    for row in account.outside[:5]:
        if row.seconds:
            advice = "move it into the captured module or function, or out of the loop"
            yield Finding(f"{row.operator} runs outside the graphs ({row.calls:.0f}x)", row.seconds, advice, row.line)


def _optimizer(account: Account, run: Run) -> Iterator[Finding]:
    """An optimizer that no graph holds moves its state once for every operator."""
    if any(g.phase == "optimizer" and ".step" in g.name for g in account.graphs):
        return
    seconds = sum(o.seconds for o in run.operators if o.phase == "optimizer")
    if seconds:
        advice = "use an elementwise optimizer of torch.optim (it is compiled), or pass fused=True"
        yield Finding("the optimizer step runs operator by operator", seconds / 2, advice)


def _rows(account: Account) -> Iterator[Finding]:
    eager = {k.operators[0]: k for k in eager_operators(account) if k.operators}
    for row in library_reasons(account):
        for operator in row.operators:
            k = eager.get(operator)
            saved = None
            if k is not None and k.measured is not None and k.limit is not None:
                saved = max(k.measured.seconds - k.limit.seconds, 0.0) * k.calls
            took = f", predicted {format_s(k.prediction.seconds)} a call" if k is not None and k.prediction else ""
            advice = "it works, by torch; a row in ridgeline/ops would let it fuse"
            yield Finding(
                f"{operator} has no generated kernel: {row.reason}{took}",
                saved,
                advice,
                row.lines[0] if row.lines else None,
            )


def _failed(run: Run) -> Iterator[Finding]:
    for root in run.roots:
        if root.failed:
            yield Finding(
                f"{root.root.name} could not be captured: {root.failed}",
                None,
                "run it with fewer Python side effects, or report it",
                root.root.line,
            )
