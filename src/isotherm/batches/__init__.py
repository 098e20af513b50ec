r"""Batch policies: which data the gradient sees at step $t$.

A policy is an object with one method, `batch(key, step_index)`, a pure function: nothing is
stored from step to step, so a run can be cut, resumed and spread over chains without
bookkeeping. The `key` is the chain's own and stays the same over the run.

The choice is part of the sampler's correctness. A thermostat reads the gradient noise off the
momentum and assumes it *independent from step to step*. Shuffled epochs make it anti-correlated:
over an epoch it sums to zero, and the thermostat, which cannot know, cools the slow
directions. On Bayesian linear regression it then loses half the posterior variance.
Fixed friction is the other way round: sweeps cancel most of the noise it cannot absorb, as long as
an epoch is short beside the dynamics.
"""
