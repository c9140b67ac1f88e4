"""A Ray cluster: reaching it, and how much room it has."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from isornn.extras import named
from isornn.training.sweep.plan import SweepError

_SECONDS_FOR_ADDRESS = 10.0
_SECONDS_FOR_NODES = 60.0  # a busy node takes its time to start a process

try:
    import ray
    from ray.util.joblib import register_ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as error:
    raise SweepError("backend", "ray", str(named(error))) from None


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Joblib's backend ``ray`` on the cluster at ``address``, or on the one that the process is connected to."""
    register_ray()
    if ray.is_initialized():
        yield
        return
    if address is not None and ":" in address:
        _check_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SweepError("address", address, f"it must be that of a running Ray cluster ({error})") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answer(address: str) -> None:
    """Ray itself tries an address where nothing answers for many minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_FOR_ADDRESS).close()
    except (OSError, ValueError) as error:
        raise SweepError("address", address, f"no Ray cluster answers there ({error})") from None


def room(threads: int, most: int | None) -> int:
    """Actors of ``threads`` CPUs that the nodes which answer have room for, at most ``most``.

    Ray counts a node that died until its next health check, and a pool waits for ever for the CPUs of such a node.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    answers = {_answer(node["NodeID"]): int(node["Resources"].get("CPU", 0)) // threads for node in nodes}
    ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=_SECONDS_FOR_NODES)
    actors = sum(answers[answer] for answer in ready if _answered(answer))
    if actors < 2:
        raise SweepError("backend", "ray", f"the cluster has room for {actors} workers, at least 2 are needed")
    return actors if most is None else min(actors, most)


def _answer(node: str) -> ray.ObjectRef[bool]:
    """Asks a node, whose CPUs may all be busy, for a sign of life."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return _alive.options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote()


@ray.remote
def _alive() -> bool:
    return True


def _answered(answer: ray.ObjectRef[bool]) -> bool:
    try:
        return ray.get(answer)
    except ray.exceptions.RayError:
        return False
