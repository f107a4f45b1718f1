"""Tables and figures from results; nothing here measures."""
