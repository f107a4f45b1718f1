"""One file a target: TITLE, and files(plan, settings) with the text of each of its files by name."""
