"""The paper's experiments with deep networks on MNIST, one module each.

- `learning`: one network trained by one sampler, epoch by epoch, resumable.
- `depth`, `step_size`, `sigmoid`, `table`, `lenet`: the paper's figures and table.
- `curves`: the pictures and rows they share.
"""
