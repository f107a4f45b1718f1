"""One file a target: `files(plan, target)` returns what is to be written, by name."""
