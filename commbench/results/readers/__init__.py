"""The formats that `commbench.results.reading` reads: one file each, found by being here."""
