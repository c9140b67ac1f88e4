"""Many runs: planned in a file, worked off by processes or a cluster, kept in a folder that survives both."""

from isornn.training.fields import flattened
from isornn.training.sweep.execute import run_sweep
from isornn.training.sweep.ledger import Run, RunFailed, SweptRun, collect
from isornn.training.sweep.plan import Fields, SweepError, expand, load_sweep
from isornn.training.sweep.training import named_by_hash, train_run, trainings_in
from isornn.training.sweep.workers import LocalWorkers, RayWorkers, WorkerLost, Workers, processors

__all__ = [
    "Fields",
    "LocalWorkers",
    "RayWorkers",
    "Run",
    "RunFailed",
    "SweepError",
    "SweptRun",
    "WorkerLost",
    "Workers",
    "collect",
    "expand",
    "flattened",
    "load_sweep",
    "named_by_hash",
    "processors",
    "run_sweep",
    "train_run",
    "trainings_in",
]
