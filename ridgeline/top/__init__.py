"""Stage: top."""
