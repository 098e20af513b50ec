"""The figure style, and the report: one self-contained page with the results of all experiments.

The report reads result files. It never runs an experiment and does not import JAX.
"""
