"""Linear changes of variables: identity, diagonal, low rank, dense and Kronecker eigenbasis."""

from isotherm.coordinates.kronecker import Kronecker, kronecker_eigenbasis, leaf_sides
from isotherm.coordinates.linear import (
    Coordinates,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    diagonal,
    eigenbasis,
    low_rank,
)

__all__ = [
    "Coordinates",
    "Dense",
    "Diagonal",
    "Identity",
    "Kronecker",
    "LowRank",
    "diagonal",
    "eigenbasis",
    "kronecker_eigenbasis",
    "leaf_sides",
    "low_rank",
]
