"""The engine's choices for a machine: which device numbers, which target, which loop program for each kernel."""

from collections.abc import Mapping, Sequence

import torch

from ridgeline.base.knobs import Knobs
from ridgeline.hw.device import Device
from ridgeline.ir.kernel import Kernel
from ridgeline.runtime.execute import Launch


class Engine:
    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs

    def device(self, where: torch.device) -> Device: ...

    def build(self, kernels: Sequence[Kernel], where: torch.device) -> Mapping[str, tuple[Launch, tuple[str, ...]]]: ...
