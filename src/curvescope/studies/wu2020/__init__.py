"""Wu, Zhu, Wu, Wang, Ge (2020): *Dissecting Hessian*."""
