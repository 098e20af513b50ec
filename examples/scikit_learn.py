"""Error bars that hold: a regression on thirty patients, through scikit-learn's interface.

Ten measurements, thirty patients to learn from, 400 to be judged by, twenty times over. Least squares
knows the noise it leaves, and nothing about how little it knows of the line. The posterior knows
both. Nothing is scaled and nothing is tuned.

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
    inside, misses = [], []
    for train, test in splits.split(x):
        mean, sd = method(x[train], y[train], x[test])
        inside.append(np.abs(y[test] - mean) < 1.645 * sd)
        misses.append((y[test] - mean) ** 2)
    print(
        f"{name:13}: {np.mean(inside):.0%} of the new patients within their 90 % intervals, "
        f"typical error {np.mean(misses) ** 0.5:.0f}"
    )
