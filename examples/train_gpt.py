"""Train a small GPT, byte by byte, on the source code of Python's own standard library.

    python examples/train_gpt.py
    python examples/train_gpt.py --device cuda --width 768 --layers 12 --heads 12 --context 1024

Prints the loss of every step. Two runs with the same options print the same numbers.
"""

import argparse
import math
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES = 256  # the vocabulary: every value a byte can take


class Attention(nn.Module):
    """Causal self-attention with several heads: (batch, time, width) -> (batch, time, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.to_qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width of a head)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(mixed.transpose(1, 2).reshape(batch, time, width))


class SwiGLU(nn.Module):
    """The gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * width // 3 // 32 * 32  # as many weights as two layers of 4 x width
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = SwiGLU(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """Bytes in, a score for every possible next byte out: (batch, time) -> (batch, time, 256)."""

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.byte_embedding = nn.Embedding(BYTES, width)
        self.place_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.apply(self.initialize)

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.dropout(self.byte_embedding(text) + self.place_embedding(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_library(most_bytes: int) -> Tensor:
    """The sources of the standard library, in the order of their names, as one row of bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
    return torch.frombuffer(text[:most_bytes], dtype=torch.uint8).long()


def batches(text: Tensor, batch: int, context: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pieces of the text, and the same pieces one byte further on."""
    while True:
        starts = torch.randint(len(text) - context, (batch, 1))
        pieces = text[starts + torch.arange(context + 1)].to(device)
        yield pieces[:, :-1], pieces[:, 1:]


def learning_rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine down to a tenth; as a share of the peak."""
    warm_up = min(10, steps // 5 + 1)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))


def make_optimizer(model: GPT, peak_rate: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves the norms' gains alone."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    gains = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95))


def train(model: GPT, text: Tensor, args: argparse.Namespace) -> None:
    optimizer = make_optimizer(model, args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    data = batches(text, args.batch, args.context, args.device)
    for step in range(args.steps):
        inputs, targets = next(data)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"step {step + 1:3}  loss {loss.item():.5f}  gradient norm {norm.item():.4f}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--text-bytes", type=int, default=4_000_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    text = read_library(args.text_bytes)
    model = GPT(args.width, args.layers, args.heads, args.context, args.dropout).to(args.device)
    weights = sum(weight.numel() for weight in model.parameters())
    print(f"{weights / 1e6:.1f} million weights, {len(text) / 1e6:.1f} million bytes of text")
    train(model, text, args)


if __name__ == "__main__":
    main()
