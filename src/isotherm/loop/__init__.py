"""The loop that runs chains: compiled chunks of steps, and what the host does in between."""

from isotherm.loop.sampling import chain, sample

__all__ = ["chain", "sample"]
