"""Running a whole plan with the reference interpreter: what fuse builds, without any target."""

from collections.abc import Callable
from typing import Any

import numpy as np
import rows
import torch

from ridgeline.fuse.build import steps
from ridgeline.fuse.walk import Plan, walk
from ridgeline.hw.catalog import load as load_device
from ridgeline.ir.reference import NUMPY, run_kernel
from ridgeline.ir.steps import KernelStep, Step

DEVICE = load_device("h200-sxm")


def plan_of(fn: Callable[..., Any], *inputs: Any) -> Plan:
    """The plan of a function of tensors on a fixed device."""
    return walk(rows.capture(fn, *inputs), DEVICE)


def kernels(plan: Plan) -> list[KernelStep]:
    return [s for s in steps(plan).steps if isinstance(s, KernelStep)]


def run(plan: Plan, inputs: list[torch.Tensor]) -> dict[str, np.ndarray]:
    """Every buffer after running the plan; library calls are not run here."""
    arrays = {n: rows.to_numpy(t) for n, t in zip(plan.graph.inputs, inputs, strict=True)}
    for step in steps(plan).steps:
        run_step(plan, step, arrays)
    return arrays


def run_step(plan: Plan, step: Step, arrays: dict[str, np.ndarray]) -> None:
    if not isinstance(step, KernelStep):
        node = step.node  # a view
        d = plan.units.through[node.outputs[0].name]
        arrays[node.outputs[0].name] = rows.evaluate(d.value, d.axes, arrays, {})
        return
    storage = step.storage
    for name in step.arguments:
        if name in arrays:
            continue
        if storage.get(name) is not None:
            arrays[name] = arrays[storage[name]]  # type: ignore[index]
        else:
            buffer = plan.units.buffers[name]
            shape = [s.const for s in buffer.shape]
            arrays[name] = np.full(shape, 77, NUMPY[buffer.dtype.name])  # poison
    local = {b.name: arrays[n] for b, n in zip(step.kernel.buffers, step.arguments, strict=True)}
    run_kernel(step.kernel, local)


def check_plan(fn: Callable[..., Any], *inputs: torch.Tensor, most_kernels: int | None = None) -> Plan:
    """Builds and runs the plan and compares every output with eager."""
    plan = plan_of(fn, *inputs)
    arrays = run(plan, [i.clone() for i in inputs])
    expected = fn(*inputs)
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for name, want in zip(plan.graph.outputs, expected, strict=True):
        rows.compare(arrays[name], want, tolerance=1e-5)  # type: ignore[index]
    if most_kernels is not None:
        found = kernels(plan)
        assert len(found) <= most_kernels, "\n".join(f"{s.kernel.stores}" for s in found)
    return plan
