"""Stage: codegen."""
