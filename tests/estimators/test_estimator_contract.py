"""All of scikit-learn's estimator checks, with few draws and a small network.

Most of the time is compilation, because programs run for milliseconds. So the settings need few
and small programs: no burn-in (a program of its own), no thinning (a loop inside a loop), and a
multiple of the 16 draws of a block of predictions. XLA optimises them little. Rows of networks are
padded to a multiple of 256 instead of 64, so that nearly all checks with as many features share
their programs.
"""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from isotherm import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
)
from isotherm.estimators import network, network_posterior

pytestmark = pytest.mark.usefixtures("compile_quickly")
LINEAR = {"num_draws": 16, "num_chains": 2, "burn_in": 0, "thin": 1}
NETWORK = {"num_draws": 192, "num_chains": 1, "burn_in": 0, "thin": 1, "random_state": 0}
"""Some checks do not set the seed, and with a few seeds so short a run ends with a warning."""


@pytest.fixture(autouse=True)
def pad_to_one_size(monkeypatch):
    """Pad the rows of nearly all checks to the same number."""
    for module in (network, network_posterior):
        monkeypatch.setattr(module, "ROW_MULTIPLE", 256)


def expected_failures(estimator):
    """Repeated rows give the posterior of weighted ones, but in regressions other draws of it.

    The check compares 32 draws to nine digits; `test_estimators.py` compares the posteriors.
    """
    kinds = ("dense", "sparse")
    reason = "the posterior is the same, the draws are not"
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in kinds}


@parametrize_with_checks(
    [BayesianLinearRegression(**LINEAR)], expected_failed_checks=expected_failures
)
def test_scikit_learn_contract_of_linear_regression(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [BayesianLogisticRegression(**LINEAR)], expected_failed_checks=expected_failures
)
def test_scikit_learn_contract_of_logistic_regression(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [BayesianMLPClassifier((4,), **NETWORK), BayesianMLPRegressor((4,), **NETWORK)]
)
def test_scikit_learn_contract_of_networks(estimator, check):
    check(estimator)
