"""Stage: capture."""
