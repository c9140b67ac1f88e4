"""A sweep on a Ray cluster of two nodes, of which one is killed half-way: what is lost, and what is run twice.

Both nodes are processes of this machine, as Ray's own tests have them: each its own raylet with its own workers. The
killed one's raylet and all its workers get SIGKILL together. Afterwards the same sweep runs in one local process, for
comparison.

Bars: every run finishes; no run that had finished by the kill is taken again or written again; runs that had not go on
from their checkpoints; all metrics are those of the local process, byte for byte.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster
from table import heading, show

from isornn.training.sweep import (
    LocalWorkers,
    RayWorkers,
    SweepError,
    SweptRun,
    collect,
    expand,
    named_by_hash,
    run_sweep,
    train_run,
)

SWEEP = {
    "base": {
        "task": {"name": "adding", "length": 60, "held_out": 100},
        "model": {"name": "torch.nn.LSTM", "hidden": 16},
        "optimiser": {"name": "adam"},
        "updates": 300,
        "validate_every": 20,
    },
    "grid": {"optimiser.rate": [1e-2, 1e-3], "seed": [0, 1, 2, 3]},
}
NODE = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}


@dataclass
class Kill:
    """What the sweep looked like when the node was killed."""

    before: list[SweptRun] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    workers: int = 0

    def half_way(self, folder: Path, cluster: Cluster, node: object) -> None:
        """Wait until a third of the runs have finished and one on the node is past a checkpoint, and kill the node."""
        while not self._time_has_come(folder, node):
            time.sleep(0.1)
        self.before = collect(folder)
        self.written = {run.folder.name: _written(run) for run in self.before if run.state == "finished"}
        raylet, workers = _raylet(node), _workers(node)
        self.workers = len(workers)
        for process in (raylet, *workers):
            os.kill(process, signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)

    def _time_has_come(self, folder: Path, node: object) -> bool:
        try:
            runs = collect(folder)
        except SweepError:
            return False
        workers = _workers(node)
        there = [run for run in runs if run.state == "running" and _process(run) in workers]
        enough = sum(run.state == "finished" for run in runs) * 3 >= len(runs)
        return enough and any((run.done or (0, 0))[0] > 60 for run in there)


def main() -> int:
    heading("A sweep of 8 training runs on a Ray cluster of two nodes with 2 workers each; one node killed half-way")
    plan = named_by_hash(expand(SWEEP))
    kill = Kill()
    with tempfile.TemporaryDirectory() as folder:
        on_ray, here = Path(folder) / "ray", Path(folder) / "here"
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            node = cluster.add_node(**NODE)
            killer = threading.Thread(target=kill.half_way, args=(on_ray, cluster, node), daemon=True)
            killer.start()
            begun = time.perf_counter()
            runs = run_sweep(plan, on_ray, train_run, RayWorkers(address=cluster.address))
            seconds = time.perf_counter() - begun
            killer.join(10)
        finally:
            ray.shutdown()
            cluster.shutdown()
        run_sweep(plan, here, train_run, LocalWorkers(1))
        return _report(kill, runs, here, seconds)


def _report(kill: Kill, runs: list[SweptRun], here: Path, seconds: float) -> int:
    rows = []
    for run, before in zip(sorted(runs, key=_name), sorted(kill.before, key=_name), strict=True):
        same = _metrics(run.folder) == _metrics(here / run.folder.name)
        done = "-" if before.done is None else before.done[0]
        rows.append([_name(run), before.state, done, run.state, run.takes, "yes" if same else "NO"])
    show(["run", "at the kill", "updates then", "in the end", "times taken", "metrics as without a kill"], rows)
    finished = [run for run in runs if run.folder.name in kill.written]
    bars = {
        "a node with workers was killed half-way": 0 < len(finished) < len(runs) and kill.workers > 0,
        "every run finished": all(run.state == "finished" for run in runs),
        "no finished run was taken or written again": all(
            run.takes == 1 and _written(run) == kill.written[run.folder.name] for run in finished
        ),
        "all metrics are those of an undisturbed sweep": all(row[-1] == "yes" for row in rows),
    }
    print(f"{len(finished)} of {len(runs)} runs had finished at the kill; {kill.workers} processes of the node died")
    print(f"{sum(run.takes > 1 for run in runs)} runs were taken more than once; {seconds:.0f} s in all\n")
    for bar, met in bars.items():
        print(f"{'met' if met else 'NOT MET'}: {bar}")
    return 0 if all(bars.values()) else 1


def _name(run: SweptRun) -> str:
    return run.folder.name


def _written(run: SweptRun) -> int:
    return (run.folder / "outcome.json").stat().st_mtime_ns


def _metrics(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


def _process(run: SweptRun) -> int:
    return int(json.loads((run.folder / "claim.json").read_text(encoding="utf-8"))["pid"])


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _workers(node: object) -> list[int]:
    raylet = _raylet(node)
    return [int(pid) for pid in Path(f"/proc/{raylet}/task/{raylet}/children").read_text(encoding="utf-8").split()]


if __name__ == "__main__":
    sys.exit(main())
