"""Stage: ir."""
