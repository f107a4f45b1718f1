"""One file a format; which one a file has is told by what is in it (`commbench.topology.reading`)."""
