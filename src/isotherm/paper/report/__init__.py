"""Figures in one style, and one self-contained page of everything that ran.

A report reads files; it never runs an experiment and does not know JAX.
"""
