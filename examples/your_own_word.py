"""Define an integrator by a word, compute its order, and sample with it.

A word is read from left to right: A drift, D heating, B damping, K kick, N noise, O damping and
noise together. A letter that occurs n times lasts h/n each time. Computing the order needs sympy:
pip install "isotherm[order]".

    python examples/your_own_word.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import isotherm
from isotherm.dynamics.order import local_order
from isotherm.models import double_well

MINE = "DAKOKAD"

# An invalid word is refused; the message gives the reason.
for wrong in ("DAKO", "ADBDA", "ABZBA"):
    try:
        isotherm.parse_integrator(wrong)
    except ValueError as error:
        print(error)

word = isotherm.parse_integrator(MINE)
proof = local_order(word.letters)  # symbolic, for any potential
print(f"\n{MINE}: {word.num_gradients} gradient per step, order {proof.order}")
moments = list(proof.leading_error)
print(
    f"the local error h^{proof.order + 1} appears in {len(moments)} moments; in {moments[0]} it is"
)
print(f"    {proof.leading_error[moments[0]]}")

# Expectations on the double well are known exactly, so the bias of a step size can be measured.
key, exact = jax.random.key(0), double_well.expectation(lambda x: x**2)
start = double_well.exact_draws(jax.random.key(1), 500)
print(f"\nE[x^2] on the double well is {exact:.3f}; with exact gradients at h = 0.2:")
for name in (MINE, "ABOBA", "euler"):
    sampler = isotherm.msgnht(
        double_well.gradient, 0.2, diffusion=1.0, thermostat_mass=10.0, integrator=name
    )
    run = isotherm.sample(
        key,
        sampler,
        start,
        isotherm.no_batches(),
        num_draws=4000,
        thin=2,
        num_chains=500,
        position_per_chain=True,
        collect={"square": isotherm.collect.average(jnp.square)},
    )
    squares = np.asarray(run.collected["square"], np.float64)
    print(f"    {name:8} {squares.mean():.3f} ± {squares.std() / np.sqrt(len(squares)):.3f}")
