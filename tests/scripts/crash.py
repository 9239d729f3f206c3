"""Fails in the middle of training, inside a module, with an error of its own and another behind it."""

import sys

import torch
from torch import nn


class Fragile(nn.Module):
    """Refuses its sixth batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == int(sys.argv[1]):
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("no more batches") from error
        return self.linear(x)


model = Fragile()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    print(model.calls, flush=True)
