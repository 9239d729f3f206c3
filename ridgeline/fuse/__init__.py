"""Stage: fuse."""
