"""A module called by methods other than forward: its inner modules are what is called."""

import torch
from torch import nn


class AutoEncoder(nn.Module):
    """Encodes and decodes; has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        self.decoder = nn.Linear(8, 12)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x) * 2

    def decode(self, code: torch.Tensor) -> torch.Tensor:
        return self.decoder(code)


def main() -> None:
    torch.manual_seed(0)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(10):
        x = torch.randn(6, 12)
        loss = (model.decode(model.encode(x)) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
