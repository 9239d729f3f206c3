"""A script that already uses torch.compile: a model in a mode of Inductor's, a decorated function, module.compile()."""

import torch
from torch import nn


@torch.compile(options={"max_autotune": True})
def penalty(weight: torch.Tensor) -> torch.Tensor:
    return weight.square().sum().sqrt() * 0.01


def main() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    model = torch.compile(plain, mode="max-autotune")
    head = nn.Linear(1, 1)
    head.compile()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    for step in range(10):
        x = torch.randn(16, 6)
        loss = (head(model(x)) - x.sum(1, keepdim=True)).square().mean() + penalty(plain[0].weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, round(loss.item(), 5), *model.state_dict())


if __name__ == "__main__":
    main()
