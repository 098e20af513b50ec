"""The errors and warnings that isotherm raises."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm.loop.run import Run


class DivergedError(RuntimeError):
    """A chain left the real numbers.

    `run` holds what was collected before, `chain`, `first_step`, `last_step` and `leaf` say where.
    """

    def __init__(self, chain: int, first_step: int, last_step: int, leaf: str, run: "Run") -> None:
        self.chain, self.leaf, self.run = chain, leaf, run
        self.first_step, self.last_step = first_step, last_step
        h = run.stats.get("step_size")
        size = f" at step size {h[chain, -1]:.3g}" if h is not None and h.size else ""
        number = len(run.rollbacks)
        tried = f", after {number} rollback{'s' * (number > 1)}" if number else ""
        remedies = ["a smaller `step_size`", "a larger batch"]
        if run.traits.integrator == "euler":
            remedies.insert(1, "`integrator='ABOBA'`, which is stable at larger steps")
        remedies.append("natural coordinates (`isotherm.warm_start`)")
        super().__init__(
            f"{run.traits.name} diverged{size}: chain {chain}, between steps {first_step} and "
            f"{last_step}, `{leaf}` is not finite{tried}. Try {', '.join(remedies)}. "
            f"The {run.num_draws} draws made before are in `error.run`."
        )


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


class HealthWarning(UserWarning):
    """A chain has not diverged, but its temperatures or its gradient noise say that its draws are not the posterior."""


class PolicyWarning(UserWarning):
    """The batch policy contradicts what the sampler assumes about gradient noise."""


class RollbackWarning(UserWarning):
    """A chain diverged, and all went back to go on with a smaller step (`run.rollbacks` says why)."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and an older one was taken."""
