"""Pure functions of draws, momenta and gradients; they know nothing of samplers or loops.

- `temperature`: is every tensor at the temperature it should be?
- `convergence`: effective sample size and R-hat.
- `ksd`: kernel Stein discrepancy, which sees the bias that the two above cannot.
- `grid`: divergences on a grid, for targets of one dimension.
- `gradient_noise`: how noisy the gradients are, and the step size they allow.
"""
