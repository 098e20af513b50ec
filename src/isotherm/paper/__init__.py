"""Everything that exists to reproduce the paper and to compare: baselines, experiments, report."""
