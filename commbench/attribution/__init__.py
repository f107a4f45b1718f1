"""Where a training step's time goes: compute, memory, communication, waiting for one another, or the host."""
