"""Deep Poisson factor analysis: topics that a deep binary network switches on, in three routes."""
