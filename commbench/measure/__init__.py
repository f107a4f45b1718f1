"""Measuring: what a collective is, the sweep over cells, the timed loop, the check of every answer."""
