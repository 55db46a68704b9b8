"""Studies of *A Practical PAC-Bayes Generalisation Bound for Deep Learning*."""
