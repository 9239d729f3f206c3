"""Stage: schedule."""
