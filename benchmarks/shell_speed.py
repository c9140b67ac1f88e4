"""``isornn analyze`` from the shell to its answer; beside it Python importing torch and nothing else.

Bar: at most 4 s.
"""

from __future__ import annotations

import subprocess
import sys

from table import heading, median_seconds, show

ANALYZE = ["-m", "isornn", "analyze", "--cell", "lstm", "--hidden", "128", "--inputs", "49", "--json", "--init"]
COMPARE = ["-m", "isornn", "compare", "--cell", "lstm", "--hidden", "128", "--inputs", "49", "--length", "200"]
CALLS = {
    "python -c 'import torch'": ["-c", "import torch"],
    "isornn analyze, nn.LSTM default": [*ANALYZE, "torch"],
    "isornn analyze, chrono T = 200": [*ANALYZE, "chrono", "--length", "200"],
    "isornn analyze, critical T = 200": [*ANALYZE, "critical", "--length", "200"],
    "isornn compare, T = 200": COMPARE,
}


def main() -> int:
    heading("From the shell to the answer, median of 5")
    rows = []
    for name, words in CALLS.items():
        command = [sys.executable, *words]
        seconds = median_seconds(lambda c=command: subprocess.run(c, check=True, capture_output=True), runs=5)
        rows.append([name, seconds, seconds / (rows[0][1] if rows else seconds)])
    show(("call", "seconds", "over importing torch"), rows)
    return 0 if float(rows[1][1]) <= 4 else 1


if __name__ == "__main__":
    sys.exit(main())
