"""A plain loop with a functional loss, dropout, gradient clipping and a schedule; prints every loss."""

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    for step in range(30):
        x, y = torch.randn(8, 16), torch.randint(10, (8,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(step, loss.item(), norm.item(), schedule.get_last_lr()[0])
    print(torch.rand(3).tolist())


if __name__ == "__main__":
    main()
