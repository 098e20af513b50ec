"""All of scikit-learn's estimator checks, with few draws and a small network.

Time goes into compilation, so the settings keep the number of programs low: no burn-in, which is a
program of its own, and as many draws as one block of predictions has.
"""

from sklearn.utils.estimator_checks import parametrize_with_checks

from isotherm import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
)

SHORT = {"num_draws": 16, "num_chains": 2, "burn_in": 0}
NETWORK = {**SHORT, "num_chains": 1, "thin": 20}


@parametrize_with_checks(
    [
        BayesianLinearRegression(**SHORT),
        BayesianLogisticRegression(**SHORT),
        BayesianMLPClassifier((4,), **NETWORK),
        BayesianMLPRegressor((4,), **NETWORK),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
