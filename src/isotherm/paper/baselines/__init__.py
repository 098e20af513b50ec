"""Rivals of the samplers, for real: the methods the literature compares them with.

Gaussians over a few thousand numbers:

- `dsvi`: doubly stochastic variational inference, first order.
- `hfsgvi`: the same bound climbed with Hessian-vector products and conjugate gradients.

What people do with networks:

- `sgd`: one point, by stochastic gradient descent with momentum.
- `bayes_by_backprop`: a diagonal Gaussian over weights.
- `mc_dropout`: dropout at training and at prediction.
- `deep_ensemble`: several points, from different starts.
- `laplace`: a Gaussian around a point, over the last layer or over all weights.

Whatever they return has `sample(key, num_draws) -> draws` (`training.Fitted`), and its draws go
wherever a run's draws go: `isotherm.posterior_predictive(network.predict, fitted.sample(key, 100), x)`.
"""
