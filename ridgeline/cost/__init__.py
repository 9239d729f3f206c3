"""Stage: cost."""
