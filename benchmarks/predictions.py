"""How far predictions are from measurements: the patterns of cpu.py, kernel by kernel.

    ridgeline hardware measure && python benchmarks/predictions.py

Prints predicted and measured seconds of every kernel and library call over 50 us and the median relative error, signed
and absolute, and writes a dated JSON to benchmarks/results/.
"""

import json
import statistics
from datetime import date

import torch
from cpu import RESULTS, patterns, step_of

from ridgeline.base.knobs import Knobs
from ridgeline.top.account import measured
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine
from ridgeline.top.price import price

LEAST_S = 50e-6
ROUNDS = 7


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for pattern in patterns():
        torch._dynamo.reset()
        engine = Engine(Knobs())
        backend = Backend(engine, Knobs(), timed=True)
        step = step_of(pattern, torch.compile(pattern.function, backend=backend, dynamic=False))
        sets = [pattern.inputs() for _ in range(2)]
        for k in range(ROUNDS):
            step(*sets[k % 2])
        for event in backend.events:
            if event.compiled is None:
                continue
            priced = price(event.compiled.steps, engine.device(torch.device("cpu")), event.phase, 1.0)
            for kernel, place in zip(priced.kernels, priced.places, strict=True):
                seen = measured([times[place] for times in (event.timings or [])[2:]])
                if seen is None or kernel.prediction is None or seen.seconds < LEAST_S:
                    continue
                error = kernel.prediction.seconds / seen.seconds - 1
                operators = ", ".join(o.split(".")[1] for o in kernel.operators[:3])
                rows.append({"pattern": pattern.name, "kernel": operators, "kind": kernel.kind, "error": error})
                rows[-1] |= {"predicted_s": kernel.prediction.seconds, "measured_s": seen.seconds}
                print(
                    f"{pattern.name:38} {operators:45.45} predicted {kernel.prediction.seconds * 1e3:8.3f} ms  "
                    f"measured {seen.seconds * 1e3:8.3f} ms  {error:+.0%}"
                )
    errors = [r["error"] for r in rows]
    device = Engine(Knobs()).device(torch.device("cpu"))
    print(f"{len(rows)} kernels over 50 us on {device.name} ({device.id})")
    print(f"median error {statistics.median(map(abs, errors)):.0%}, signed {statistics.median(errors):+.0%}")
    content = {"date": date.today().isoformat(), "device": device.id, "torch": torch.__version__, "kernels": rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{date.today().isoformat()}-predictions.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
