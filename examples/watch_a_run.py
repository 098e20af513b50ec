"""Log a run while it makes draws, and stop it when its score no longer improves.

TensorBoard is used if it is installed; otherwise the numbers are printed.
"""

import jax
import numpy as np
from sklearn.datasets import load_digits

import isotherm


class Logger:
    """Writes numbers to TensorBoard, or to the terminal."""

    def __init__(self, folder):
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.write = SummaryWriter(folder).add_scalar
        except ImportError:
            self.write = lambda name, value, step: print(f"{step:6d}  {name} {value:.4g}")

    def log(self, step, numbers):
        """Write all numbers of a step."""
        for name, value in numbers.items():
            self.write(name, value, step)


class Watcher:
    """Scores held-out rows after every chunk; stops when the score has not improved for a while."""

    def __init__(self, network, held_out, logger, patience=2000):
        self.predict, self.held_out = jax.jit(network.predict), held_out
        self.logger, self.patience = logger, patience
        self.best, self.best_step = np.inf, 0

    def __call__(self, report):
        """Return whether to stop."""
        x, y = self.held_out
        first = jax.tree.map(lambda leaf: leaf[0], report.position)  # of the first chain
        nll = -np.log(np.asarray(self.predict(first, x))[np.arange(len(y)), y]).mean()
        self.logger.log(report.step, {"held-out NLL": nll, "temperature": report.temperature})
        if nll < self.best:
            self.best, self.best_step = nll, report.step
        return report.step - self.best_step > self.patience


x, y = load_digits(return_X_y=True)
x, y = (x / 16).astype(np.float32), y.astype(np.int32)
network = isotherm.models.mlp((64, 30, 10))
batches = isotherm.independent_batches((x[:1500], y[:1500]), batch_size=100)
sampler = isotherm.msgnht(network.gradient(1500), step_size=2e-3, diffusion=5.0)
watcher = Watcher(network, (x[1500:], y[1500:]), Logger("runs/watched"))
key, init_key = jax.random.split(jax.random.key(0))
run = isotherm.sample(
    key, sampler, network.init(init_key), batches, num_draws=300, thin=20, callback=watcher
)
print(f"{run.num_draws} draws; best held-out NLL {watcher.best:.3f}")
