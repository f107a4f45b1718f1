"""Backends: one file a library. `base.py` is the contract; a backend's name is its file's name."""
