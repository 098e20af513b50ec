"""Baselines: the methods that the literature compares SG-MCMC samplers with.

Gaussian approximations, for up to a few thousand parameters:

- `dsvi`: doubly stochastic variational inference, first order.
- `hfsgvi`: maximizes the same bound with Hessian-vector products and conjugate gradients.

Methods for neural networks:

- `sgd`: a point estimate, by stochastic gradient descent with momentum.
- `bayes_by_backprop`: a diagonal Gaussian over the weights.
- `mc_dropout`: dropout at training and at prediction.
- `deep_ensemble`: several point estimates, from different starts.
- `laplace`: a Gaussian around a point estimate, over the last layer or over all weights.

Every fit has `sample(key, num_draws) -> draws` (`training.Fitted`). Its draws can be used like
those of a run: `isotherm.posterior_predictive(network.predict, fitted.sample(key, 100), x)`.
"""
