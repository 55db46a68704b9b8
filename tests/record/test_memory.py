"""How much memory is free, as machines and containers say it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from curvescope.record import memory

MIB = 1 << 20


def system(root: Path, files: dict[str, str]) -> Path:
    """A file system with 1000 MiB available and some files more."""
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {1000 * 1024} kB\n", **files}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def v2(folder: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/{folder}"
    stat = f"anon 1\ninactive_file {inactive * MIB}\n"
    current = f"{used * MIB}\n"
    return {f"{at}memory.max": limit, f"{at}memory.current": current, f"{at}memory.stat": stat}


def v1(folder: str, limit: int, used: int, inactive: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{at}memory.limit_in_bytes": f"{limit}\n",
        f"{at}memory.usage_in_bytes": f"{used * MIB}\n",
        f"{at}memory.stat": f"inactive_file 7\ntotal_inactive_file {inactive * MIB}\n",
    }


V2, V1 = {"proc/self/cgroup": "0::/\n"}, {"proc/self/cgroup": "5:cpu:/\n4:memory:/a/b\n0::/c\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1000),
        (V2 | v2("", f"{300 * MIB}\n", 100), 200),
        (V2 | v2("", f"{300 * MIB}\n", 100, inactive=50), 250),
        (V2 | v2("", "max\n", 100), 1000),
        (V2 | v2("", f"{9000 * MIB}\n", 100), 1000),
        (V2 | v2("", f"{300 * MIB}\n", 400), 0),
        (
            {"proc/self/cgroup": "0::/a/b\n"} | v2("a/b/", "max\n", 1) | v2("a/", f"{90 * MIB}", 1),
            89,
        ),
        # Inside a container the path is often that of the machine outside: the mount decides.
        ({"proc/self/cgroup": "0::/docker/123\n"} | v2("", f"{300 * MIB}\n", 100), 200),
        (V1 | v1("a/b/", 300 * MIB, 100, inactive=5), 205),
        (V1 | v1("a/", 300 * MIB, 100) | v1("a/b/", 1 << 62, 100), 200),
        (V1 | v1("", 300 * MIB, 100), 200),
        (V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "1\n"}, 1000),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert memory.free_on_host(system(tmp_path, files)) == expected * MIB


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert memory.free_on_host(tmp_path) == 4 << 30


def test_tensors_without_memory_of_their_own() -> None:
    zero = torch._efficientzerotensor((3,))
    sparse = torch.eye(2).to_sparse()
    some = torch.ones(4)
    (held,) = memory.held([zero, sparse, some, some[1:]])
    assert held.untyped_storage().data_ptr() == some.untyped_storage().data_ptr()
