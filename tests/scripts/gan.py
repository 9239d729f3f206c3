"""A GAN with two optimizers, the discriminator stepping twice a round."""

import torch
import torch.nn.functional as F
from torch import nn, optim


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
    generator_steps = optim.Adam(generator.parameters(), lr=1e-3)
    discriminator_steps = optim.RMSprop(discriminator.parameters(), lr=1e-3)
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    for round_number in range(14):
        for _ in range(2):
            fake = generator(torch.randn(8, 4)).detach()
            real = torch.randn(8, 2) + 2
            loss = F.binary_cross_entropy_with_logits(discriminator(real), ones)
            loss = loss + F.binary_cross_entropy_with_logits(discriminator(fake), zeros)
            discriminator_steps.zero_grad()
            loss.backward()
            discriminator_steps.step()
        fooled = F.binary_cross_entropy_with_logits(discriminator(generator(torch.randn(8, 4))), ones)
        generator_steps.zero_grad()
        fooled.backward()
        generator_steps.step()
        print(round_number, loss.item(), fooled.item())


if __name__ == "__main__":
    main()
