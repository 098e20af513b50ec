"""Dataset readers, and a registry of dataset files with checksums. NumPy and SciPy, no JAX."""
