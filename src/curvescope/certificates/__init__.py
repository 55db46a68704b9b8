"""PAC-Bayes certificates in curvature bases (DH §6, App. G).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from curvescope.certificates.bound import Confidence, PriorGrid
from curvescope.certificates.certificate import Certificate
from curvescope.certificates.certification import certify
from curvescope.certificates.methods import Method, posterior_method
from curvescope.certificates.optimize import Progress
from curvescope.certificates.verification import Verification, verify

__all__ = [
    "Certificate",
    "Confidence",
    "Method",
    "PriorGrid",
    "Progress",
    "Verification",
    "certify",
    "posterior_method",
    "verify",
]
