"""Calibrated intervals: a regression on thirty patients, with scikit-learn's interface.

Ten features, thirty patients to train on and 400 to test on, in twenty random splits. The intervals
of least squares include the residual noise, but not the uncertainty of the coefficients; those of
the posterior include both. Features are not scaled, and no setting is tuned.

    python examples/scikit_learn.py
"""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import ShuffleSplit

from isotherm import BayesianLinearRegression

x, y = load_diabetes(return_X_y=True, scaled=False)
splits = ShuffleSplit(n_splits=20, train_size=30, test_size=400, random_state=0)


def least_squares(x_train, y_train, x_test):
    line = LinearRegression().fit(x_train, y_train)
    return line.predict(x_test), np.std(y_train - line.predict(x_train))


def posterior(x_train, y_train, x_test):
    line = BayesianLinearRegression(num_draws=500, random_state=0).fit(x_train, y_train)
    return line.predict(x_test, return_std=True)


for name, method in {"least squares": least_squares, "posterior": posterior}.items():
    inside, squared_errors = [], []
    for train, test in splits.split(x):
        mean, sd = method(x[train], y[train], x[test])
        inside.append(np.abs(y[test] - mean) < 1.645 * sd)
        squared_errors.append((y[test] - mean) ** 2)
    rmse = np.mean(squared_errors) ** 0.5
    print(f"{name:13}: {np.mean(inside):.0%} of test patients in 90 % intervals, RMSE {rmse:.0f}")
