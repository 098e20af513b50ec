"""Estimators with scikit-learn's interface: posterior draws behind `fit` and `predict`."""
