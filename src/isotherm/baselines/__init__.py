"""Rivals of the samplers, for real: the methods the literature compares them with.

- `dsvi`: doubly stochastic variational inference, first order.
- `hfsgvi`: the same bound climbed with Hessian-vector products and conjugate gradients.

Both return a `gaussian.GaussianApproximation`, whose draws go wherever a run's draws go
(`isotherm.predictive`).
"""
