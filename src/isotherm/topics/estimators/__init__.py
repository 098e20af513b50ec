"""Topic models with scikit-learn's interface."""
