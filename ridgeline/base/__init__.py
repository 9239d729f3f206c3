"""Stage: base."""
