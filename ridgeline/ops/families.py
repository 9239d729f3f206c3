"""All families of rows; importing this fills the table."""

from ridgeline.ops import activations, folds, library, logic, norms, scalar, views

LOADED = (activations, folds, library, logic, norms, scalar, views)
