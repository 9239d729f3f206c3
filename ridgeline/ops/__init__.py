"""Stage: ops."""
