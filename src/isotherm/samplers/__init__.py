"""One named algorithm per file; find it by its name in the literature."""
