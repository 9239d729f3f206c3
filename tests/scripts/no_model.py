"""No model, hardly any torch: what Python itself shows to a script."""

import os
import pickle
import sys
from dataclasses import dataclass

import torch

import __main__


@dataclass
class Point:
    """Something that pickles by the name of its module."""

    x: int = 1


def main() -> int:
    print(sys.argv[1:], __name__, __file__, __main__.__dict__ is globals(), __spec__, __package__, __doc__)
    print(sys.path[0], os.getcwd(), sorted(name for name in globals() if name.startswith("__")))
    print(pickle.loads(pickle.dumps(Point(3))), sys.stdin.read())
    print(torch.arange(5).sum().item())
    return 7


if __name__ == "__main__":
    sys.exit(main())
