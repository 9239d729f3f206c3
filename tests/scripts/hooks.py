"""Hooks of every kind, checkpointing, an evaluation before training, and a manual seed in the middle."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """Two layers, the second recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(4, 4), nn.Linear(4, 1), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(lambda h: self.drop(self.first(h)).relu(), x, use_reentrant=False))


def main() -> None:
    torch.manual_seed(0)
    model, calls = Net(), {"forward": 0, "step": 0}
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: calls.__setitem__("step", calls["step"] + 1))
    model.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    with torch.no_grad():
        print(sum(model(torch.randn(2, 4)).sum().item() for _ in range(8)))
    for step in range(10):
        if step == 5:
            torch.manual_seed(1)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().sum()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), calls)
    print(sorted(model.__dict__), sorted(optimizer.__dict__), "step" in vars(optimizer))


if __name__ == "__main__":
    main()
