"""Advice: which nodes, which rank where, which algorithm, how much work for each device; and telling a launcher so."""
