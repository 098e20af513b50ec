"""Exact posteriors that samplers are compared with; production code does not import them."""
