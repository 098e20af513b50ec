"""The errors and warnings that isotherm raises."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isotherm.loop.run import Run


class DivergedError(RuntimeError):
    """A chain diverged: its position is no longer finite.

    Attributes
    ----------
    run
        The run with the draws made before the divergence.
    chain, leaf
        The chain that diverged, and the path of the leaf that is not finite.
    first_step, last_step
        The divergence happened between these steps.
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
    """Another process of the run has ended or cannot be reached."""


class HealthWarning(UserWarning):
    """Temperatures or gradient noise show that the draws do not follow the posterior."""


class ConvergenceWarning(UserWarning):
    """Chains do not agree at the end of a run: R-hat is large."""


class PolicyWarning(UserWarning):
    """The batch policy contradicts what the sampler assumes about gradient noise."""


class RollbackWarning(UserWarning):
    """A chain diverged, and all chains continue from an earlier state with a smaller step size.

    `run.rollbacks` lists the reasons.
    """


class LostDrawsWarning(UserWarning):
    """Chains have diverged, or kept draws or collected results are not finite; `run.ok` is false.

    The text has the counts.
    """


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and an older one is used."""
