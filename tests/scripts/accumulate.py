"""Gradient accumulation over three micro-batches, a criterion module, batch norm, momentum and a gradient scaler."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model(torch.randn(2, 1, 6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(12):
        for _ in range(3):
            images, labels = torch.randn(8, 1, 6, 6), torch.randint(5, (8,))
            loss = criterion(model(images), labels)
            scaler.scale(loss / 3).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(step, loss.item(), model[1].running_mean.sum().item())
    model.eval()
    with torch.no_grad():
        print(model(torch.ones(1, 1, 6, 6)).tolist())


if __name__ == "__main__":
    main()
