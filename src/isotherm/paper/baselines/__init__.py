"""Baselines: the methods that the literature compares SG-MCMC samplers with.

Gaussian approximations, for up to a few thousand parameters:

- `dsvi`: doubly stochastic variational inference, first order.
- `hfsgvi`: maximizes the same bound with Hessian-vector products and conjugate gradients.

Methods for neural networks:

- `sgd`: a point estimate, by stochastic gradient descent with momentum.
- `bayes_by_backprop`: a diagonal Gaussian over the weights.
- `mc_dropout`: dropout at training and at prediction.
- `deep_ensemble`: several point estimates, from different starts.
- `tuned_ensemble`: the same, with model, learning rate and length chosen on held-out rows.
- `laplace`: a Gaussian around a point estimate, over the last layer or over all weights.
- `kfac_laplace`: the same over all layers, Kronecker-factored, with learned prior scales.
- `swag`: a Gaussian with the moments of the iterates of SGD.
- `ivon`: a diagonal Gaussian by variational Newton steps.
- `cyclical_sgmcmc`: SGHMC or SGLD in cycles of falling step size.
- `sms_ubu`: Langevin dynamics with the UBU integrator and symmetric sweeps.
- `full_hmc`: Hamiltonian Monte Carlo on all data.

Every fit has `sample(key, num_draws) -> draws` (`training.Fitted`). Its draws can be used like
those of a run: `isotherm.posterior_predictive(network.predict, fitted.sample(key, 100), x)`.
`training.draw_outputs` draws the outputs of any fit at given inputs, which is what scores need.
"""
