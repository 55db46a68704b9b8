"""Digests that identify whatever is saved or reused.

A digest is a SHA-256 over an unambiguous description. Two things with one digest are the same
numbers, the same code and the same settings, in this process or another one, wherever they lie in
memory. This folder is the only place in the package that hashes.
"""

from curvescope.identity.encoding import digest, row_digests
from curvescope.identity.files import checksum, code_digest, file_digest
from curvescope.identity.settings import Settings
from curvescope.identity.snapshot import Snapshot, Writes

__all__ = [
    "Settings",
    "Snapshot",
    "Writes",
    "checksum",
    "code_digest",
    "digest",
    "file_digest",
    "row_digests",
]
