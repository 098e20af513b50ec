"""Gradient estimators: functions `(position, batch) -> grads`, uphill and at full-data scale."""
