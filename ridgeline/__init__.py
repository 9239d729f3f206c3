"""Ridgeline: PyTorch programs at the memory limit of the hardware, and how far from it they are."""

__version__ = "0.1.0"
