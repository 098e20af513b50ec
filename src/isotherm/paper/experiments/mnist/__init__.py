"""The paper's experiments with neural networks on MNIST, and one of our own, one module each.

- `learning`: one network sampled by one sampler, epoch by epoch, with checkpoints.
- `record`: what is measured of a chain.
- `depth`, `step_size`, `sigmoid`, `table`, `lenet`: the paper's figures and table.
- `natural`: Kronecker coordinates and batch policies, beyond the paper.
- `rivals`: the baselines of the table.
- `curves`: settings, runs, rows and figures that they share.
"""
