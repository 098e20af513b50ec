"""Exact posteriors that samplers are measured against; production code does not import them."""
