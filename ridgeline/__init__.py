"""Ridgeline: PyTorch programs at the memory limit of the hardware, and how far from it they are."""

from ridgeline.hw.catalog import Hardware

__version__ = "0.1.0"
__all__ = ["__version__", "hardware"]

hardware = Hardware()
