"""Readers, and a registry of files with their checksums: NumPy, no JAX."""
