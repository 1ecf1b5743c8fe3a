"""Slow ways to the same results, plain enough to be seen to be right: dense projectors, SVD, autograd, loops."""
