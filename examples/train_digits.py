"""Train a small convolutional network to read scikit-learn's handwritten digits.

    python examples/train_digits.py
    python examples/train_digits.py --device cuda --channels 256 --epochs 20

Prints the loss of every step, and after every epoch how many of the digits held back it reads right.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset, random_split

DIGITS = 10
HELD_BACK = 297  # of the 1,797 images


class ConvolutionBlock(nn.Module):
    """Two convolutions with batch norm, around a residual: (batch, channels, height, width) -> the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(inner)))


class Reader(nn.Module):
    """An 8 x 8 image in, a score for each digit out: (batch, 1, 8, 8) -> (batch, 10)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.fine = ConvolutionBlock(channels)
        self.coarse = ConvolutionBlock(channels)
        self.head = nn.Linear(channels, DIGITS)

    def forward(self, images: Tensor) -> Tensor:
        x = self.fine(self.stem(images))
        x = self.coarse(F.max_pool2d(x, 2))
        return self.head(x.mean(dim=(2, 3)))


def load_data(batch: int) -> tuple[DataLoader, DataLoader]:
    """The digits in two loaders: shuffled batches to learn from, and those held back."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels are 0 to 16
    labels = torch.tensor(digits.target)
    data = TensorDataset(images, labels)
    learn, hold = random_split(data, [len(data) - HELD_BACK, HELD_BACK])
    return DataLoader(learn, batch, shuffle=True, drop_last=True), DataLoader(hold, batch)


def train_epoch(model: Reader, loader: DataLoader, optimizer: Optimizer, schedule: LRScheduler, device: str) -> None:
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"loss {loss.item():.5f}  learning rate {schedule.get_last_lr()[0]:.5f}", flush=True)


@torch.no_grad()
def evaluate(model: Reader, loader: DataLoader, device: str) -> float:
    """The share of digits read right."""
    model.eval()
    right = 0
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(dim=1)
        right += (guesses == labels.to(device)).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small convolutional network on scikit-learn's digits.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=125)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    learn, hold = load_data(args.batch)
    model = Reader(args.channels).to(args.device)
    optimizer = SGD(model.parameters(), args.learning_rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = OneCycleLR(optimizer, args.learning_rate, total_steps=args.epochs * len(learn))
    for epoch in range(args.epochs):
        train_epoch(model, learn, optimizer, schedule, args.device)
        print(f"epoch {epoch + 1}: reads {evaluate(model, hold, args.device):.1%} right", flush=True)


if __name__ == "__main__":
    main()
