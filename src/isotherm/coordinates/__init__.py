"""Linear changes of variables: identity, diagonal, dense and Kronecker eigenbasis."""

from isotherm.coordinates.kronecker import Kronecker, kronecker_eigenbasis
from isotherm.coordinates.linear import (
    Coordinates,
    Dense,
    Diagonal,
    Identity,
    diagonal,
    eigenbasis,
)

__all__ = [
    "Coordinates",
    "Dense",
    "Diagonal",
    "Identity",
    "Kronecker",
    "diagonal",
    "eigenbasis",
    "kronecker_eigenbasis",
]
