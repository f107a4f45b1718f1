"""The formats that `commbench.attribution.reading` reads: one file each, found by being here."""
