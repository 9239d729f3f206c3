"""All families of rows; importing this fills the table."""

from ridgeline.ops import activations, factories, folds, library, logic, losses, norms, scalar, views

LOADED = (activations, factories, folds, library, logic, losses, norms, scalar, views)
