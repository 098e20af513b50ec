"""Topic models on sparse counts: corpora, Gibbs kernels in Numba, scores."""
