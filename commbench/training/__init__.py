"""Real training steps of a small model, which make traces: data-parallel, or with a parameter server."""
