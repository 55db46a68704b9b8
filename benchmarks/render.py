"""Markdown tables from the JSON results of ``products.py``.

python benchmarks/render.py FILE …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TASKS = {"Hv": "H·v", "HV": "H·V (16)", "Gv": "G·v", "GV": "G·V (16)"}


def table(name: str, result: dict[str, Any]) -> str:
    lines = [
        f"**{name}**: {result['parameters']:,} parameters, {result['samples']} samples, "
        f"one gradient {result['gradient_ms']:.1f} ms",
        "",
        "| | " + " | ".join(TASKS.values()) + " |",
        "|---" * (1 + len(TASKS)) + "|",
    ]
    for contestant, row in result["ratios"].items():
        cells = [f"{row[task]:.2f}" if task in row else "–" for task in TASKS]
        lines.append(f"| {contestant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for workload, result in json.loads(Path(path).read_text())["workloads"].items():
            print(table(workload, result), end="\n\n")
