"""Samplers: one algorithm per file, under its name in the literature."""
