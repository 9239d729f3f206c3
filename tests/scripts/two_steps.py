"""Ends after two steps, with an exit message and a farewell at exit."""

import atexit
import sys

import torch
from torch import nn

atexit.register(print, "farewell")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for _ in range(2):
    loss = nn.functional.l1_loss(model(torch.randn(5, 4)), torch.zeros(5, 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
sys.exit("two steps are enough")
