"""Log densities and predictions: `log_prior`, `log_likelihood`, `predict`."""
