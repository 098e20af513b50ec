"""Gradient estimators: `(position, batch) -> grads` of the log density at full-data scale."""
