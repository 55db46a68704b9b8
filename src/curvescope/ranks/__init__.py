"""One computation on several processes: the ranks of ``torch.distributed``."""

from curvescope.ranks.failure import RankError
from curvescope.ranks.group import Group, GroupLike
from curvescope.ranks.traffic import Traffic

__all__ = ["Group", "GroupLike", "RankError", "Traffic"]
