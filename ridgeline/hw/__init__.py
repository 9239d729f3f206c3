"""Stage: hw."""
