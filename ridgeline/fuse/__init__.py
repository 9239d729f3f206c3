"""The walk from the eager plan to the graph plan: one list of priced decisions."""
