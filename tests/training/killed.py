"""A run that is not interrupted, and one that is killed (SIGKILL) again and again, each time in a process of its own.

    python killed.py FOLDER CONFIGURATION.json SEED

They lie in FOLDER/whole and FOLDER/killed-1; where that one ends before all kills are spent, FOLDER/killed-2 and so on
begin anew. How often a run was killed in which way is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import lightning_fabric  # noqa: F401  (loaded once, before the processes part)
import torch
import torch.utils.tensorboard

from isornn.training import Configuration, run

KILLS = 2  # in each way


def main(folder: Path, configuration: Configuration, seed: int) -> None:
    draw = random.Random(seed)
    begun = time.perf_counter()
    assert _attempt(folder / "whole", configuration) == 0
    duration = time.perf_counter() - begun
    ways: dict[str, Callable[[Path], int]] = {
        "at a time": lambda at: _attempt(at, configuration, delay=draw.uniform(0, duration / 2)),
        "at a file": lambda at: _attempt(at, configuration, _at_a_file(draw)),
        "in a checkpoint": lambda at: _attempt(at, configuration, _in_a_checkpoint(draw)),
    }
    left = [way for way in ways for _ in range(KILLS)]
    draw.shuffle(left)
    runs = 1
    while left:
        ended = ways[left[-1]](folder / f"killed-{runs}")
        assert ended in (0, -signal.SIGKILL), ended
        if ended:
            left.pop()
        else:
            runs += 1
    assert _attempt(folder / f"killed-{runs}", configuration) == 0
    print(json.dumps(dict.fromkeys(ways, KILLS)))


def _attempt(
    folder: Path, configuration: Configuration, arm: Callable[[], None] = lambda: None, delay: float | None = None
) -> int:
    """How the process ended that ran, armed to kill itself or killed after a ``delay``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            arm()
            run(configuration, folder, device="cpu")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _at_a_file(draw: random.Random) -> Callable[[], None]:
    """Right before a file is opened, renamed or cut."""
    left = draw.randint(1, 30)

    def count(event: str, _: object) -> None:
        nonlocal left
        if event in ("open", "os.rename", "os.truncate"):
            left -= 1
            if left == 0:
                _die()

    return lambda: sys.addaudithook(count)


def _in_a_checkpoint(draw: random.Random) -> Callable[[], None]:
    """With some bytes of a new checkpoint written, and the rest not."""
    left, write = draw.randint(1, 4), Path.write_bytes

    def some(file: Path, data: bytes) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            write(file, data[: draw.randrange(len(data))])
            _die()
        return write(file, data)

    def arm() -> None:
        Path.write_bytes = some  # type: ignore[assignment, method-assign]

    return arm


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Configuration.from_mapping(json.loads(Path(sys.argv[2]).read_text())), int(sys.argv[3]))
