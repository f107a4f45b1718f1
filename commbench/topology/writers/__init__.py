"""One file a format, named as its reader: `write(cluster)` returns the text that a file of the format holds."""
