"""All families of rows; importing this fills the table."""

from ridgeline.ops import (
    activations,
    factories,
    folds,
    indexing,
    library,
    logic,
    losses,
    norms,
    pads,
    pooling,
    random,
    resample,
    scalar,
    scatter,
    special,
    views,
)

LOADED = (
    activations,
    factories,
    folds,
    indexing,
    library,
    logic,
    losses,
    norms,
    pads,
    pooling,
    random,
    resample,
    scalar,
    scatter,
    special,
    views,
)
