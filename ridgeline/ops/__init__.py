"""The operator table: one row an operator, by family. Importing `ridgeline.ops.families` fills it."""
