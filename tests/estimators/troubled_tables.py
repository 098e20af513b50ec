"""Tables with degenerate columns, and helpers to compare posteriors of standardised features."""

import numpy as np

PRIOR_VARIANCE = 6.25


def with_trouble(x):
    """Append columns that are repeated, constant, all zero, of extreme scales, and collinear."""
    zeros = np.zeros(len(x))
    return np.column_stack(
        [x, x[:, 0], zeros + 3, zeros, 1e6 * x[:, 1], 1e-6 * x[:, 2], x[:, 0] + x[:, 3]]
    )


def scale(column):
    """The scale of a feature, as documented."""
    values, others = np.unique(column), column[column != 0]
    if len(values) <= 2:
        return np.ptp(values) or 1.0
    return np.sqrt(np.mean(others**2)) if 2 * len(others) < len(column) else column.std()


def standardised(x):
    """Standardised features with a column of ones first, and the means and scales used."""
    mean, scales = x.mean(0), np.array([scale(column) for column in x.T])
    return np.column_stack([np.ones(len(x)), (x - mean) / scales]), mean, scales


def standardised_draws(model, mean, scales):
    """Draws of the coefficients of standardised features, the intercept first: (draws, …)."""
    coef, intercept = model.draws_["coef"], model.draws_["intercept"]
    both = np.concatenate([(intercept + coef @ mean)[..., None], coef * scales], axis=-1)
    return both.reshape(-1, *both.shape[2:])


def errors(draws, mean, sd):
    """Relative errors of standard deviations; errors of means, in standard deviations."""
    return np.abs(draws.std(0) / sd - 1), np.abs(draws.mean(0) - mean) / sd


def classes(num_classes, rows=300, features=4, seed=0):
    """Simulated overlapping classes; features with different scales and offsets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)) @ rng.normal(size=(features, features))
    z = x @ rng.normal(size=(features, num_classes)) + rng.normal(size=num_classes)
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return 100 + x * 10.0 ** np.arange(-1, features - 1), y
