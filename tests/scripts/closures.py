"""Optimizers that call the model themselves: LBFGS, several times a step, and Adam with a closure."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(20, 3)
    y = x.sum(1, keepdim=True)
    for kind in (torch.optim.LBFGS, torch.optim.Adam):
        optimizer = kind(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = nn.functional.smooth_l1_loss(model(x), y)
            loss.backward()
            return loss

        for step in range(8):
            print(kind.__name__, step, optimizer.step(closure).item())


if __name__ == "__main__":
    main()
