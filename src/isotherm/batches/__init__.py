r"""Batch policies: which data the gradient sees at step $t$.

A policy has one method, `batch(key, step_index)`, a pure function: no state is kept from step to
step, so a run can be interrupted, resumed and distributed over chains. Each chain has its own
`key`, which stays the same over the run. Streamed batches are read by the host, between compiled
programs.

The policy affects the correctness of a sampler. A thermostat estimates the gradient noise from the
momentum and assumes that it is *independent from step to step*. With shuffled epochs it is
anti-correlated: over an epoch it sums to zero, and the thermostat cools the slow directions. On
Bayesian linear regression half of the posterior variance is lost. With fixed friction the opposite
holds: sweeps cancel most of the noise that the friction cannot absorb, as long as an epoch is short
compared with the dynamics.
"""
