"""Reproduction of the paper: baselines to compare with, experiments, and the report."""
