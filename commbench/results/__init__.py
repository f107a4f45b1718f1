"""Results: what one cell gave, kept in a run folder, and read back."""
