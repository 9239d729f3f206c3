"""All families of rows; importing this fills the table."""

from ridgeline.ops import norms

LOADED = (norms,)
