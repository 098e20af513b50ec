"""Deep Poisson factor analysis: a deep binary network switches topics on and off."""
