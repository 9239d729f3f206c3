"""DataParallel where there is nothing to be parallel over: the CPU."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.DataParallel(nn.Sequential(nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x = torch.randn(16, 6)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), *model.state_dict())


if __name__ == "__main__":
    main()
