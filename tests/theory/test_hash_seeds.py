"""Equal calls agree, whatever order sets of names have in a process."""

import os
import subprocess
import sys

_ASKED = """
import json, isornn
spec = isornn.critical(isornn.cells.LSTM(), 50, input=isornn.Input()).spec
print(json.dumps(isornn.analyze(spec).to_json(), sort_keys=True, default=str))
"""


def test_equal_calls_agree_in_processes_with_other_hash_seeds() -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-c", _ASKED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "6")
    }
    assert len(answers) == 1 and '"reach"' in answers.pop()
