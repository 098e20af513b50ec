"""Scikit-learn's own contract, in full; only the number of draws is smaller than by default."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from isotherm import BayesianLinearRegression, BayesianLogisticRegression

SHORT = {"num_draws": 25, "num_chains": 2}


@parametrize_with_checks([BayesianLinearRegression(**SHORT), BayesianLogisticRegression(**SHORT)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)
