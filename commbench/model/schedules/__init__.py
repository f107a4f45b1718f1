"""One file an algorithm, called by its canonical name: `schedule(collective, group, channel)` in each."""
