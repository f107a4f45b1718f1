"""What a launch of training says of itself: `commbench.training` writes it, and `commbench.attribution` reads it."""

TRAINING = "training.json"  # beside its traces
FORMAT = 1  # of that file
CLOCKS = "clock-rank*.json"  # beside them too: what each rank's clock showed
