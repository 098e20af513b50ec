"""Interfaces to other libraries, one file each, imported on first use."""
