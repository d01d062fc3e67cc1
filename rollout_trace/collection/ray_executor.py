"""``RayExecutor``: rollouts in actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rollout_trace import guard
from rollout_trace._wrong_use import import_extra
from rollout_trace.collection import checks
from rollout_trace.collection.job import Job, Outcome, Work
from rollout_trace.collection.pool import Pool
from rollout_trace.collection.ray_worker import RayWorker

CONNECT_SECONDS = 10.0


class RayExecutor:
    """Makes rollouts in actors of a Ray cluster, for ``rt.collect(executor=rt.RayExecutor())``. Needs the extra ray.

    Each actor makes several rollouts at once if ``concurrency`` is larger than ``actors``, and writes its own shards:
    give ``collect`` a folder that all nodes can reach, or an address. A lost actor is replaced, and its rollouts are
    made again; Ray cleans up the rest.

    The cluster is the one this process is connected to (``ray.init``); otherwise the one at ``address``; otherwise the
    one that ``RAY_ADDRESS`` names or that runs on this machine; otherwise one is started here, and ended with the
    collection.

    Args:
        address: address of the cluster, as for ``ray.init``.
        actors: maximum number of actors. None: as many as the cluster's CPUs allow when the first rollout begins.
        num_cpus: CPUs that Ray reserves for each actor; 0.5 suits agents that mostly wait.
        num_gpus: GPUs of each actor.
        resources: further resources of each actor, by name.
        runtime_env: as for Ray: packages, environment variables, ``{"working_dir": "."}`` for the agent's code.
        rollouts_per_actor: number of rollouts after which an actor is replaced. None: it is used until the end.
        grace: seconds to wait before killing an actor that does not respond to the timeout of a rollout, or that does
            not end when told to.

    Raises:
        TypeError, ValueError: an argument is not a number of the right kind, or is too small.
        ImportError: Ray is not installed.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        actors: int | None = None,
        num_cpus: float = 1,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        rollouts_per_actor: int | None = None,
        grace: float = 30.0,
    ) -> None:
        self._ray = import_extra("ray", "Rollouts on a Ray cluster need", ".[ray]")
        self.address = address
        self.actors = None if actors is None else checks.whole(actors, "actors", least=1)
        quota = rollouts_per_actor
        self.rollouts_per_actor = None if quota is None else checks.whole(quota, "rollouts_per_actor", least=1)
        self.grace = checks.seconds(grace, "grace")
        self.num_cpus = num_cpus
        given = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": None if resources is None else dict(resources),
            "runtime_env": None if runtime_env is None else dict(runtime_env),
        }
        self._options = {one: value for one, value in given.items() if value is not None}
        self._is_ours = False
        """Whether this object connected to the cluster."""
        self._connecting: asyncio.Future[None] | None = None
        self._pool: Pool[RayWorker] | None = None
        self._works: dict[int, tuple[Work, int, Any]] = {}

    async def run(self, job: Job) -> Outcome:
        """Makes one rollout in one of the actors.

        Raises:
            WorkerLost: the actor has ended.
            TypeError: the agent, a reward or the task cannot be sent there.
            ConnectionError: there is no cluster at the address.
        """
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
        await asyncio.shield(self._connecting)
        if self._pool is None:
            self._pool = Pool(self.actors or self._room(), self._start)
        self._load(job.work)
        return await self._pool.make(job)

    async def close(self) -> None:
        """Lets each actor finish its output, and ends it. A cluster that was running before keeps running."""
        pool, self._pool = self._pool, None
        connecting, self._connecting = self._connecting, None
        try:
            if connecting is not None:
                await asyncio.wait([connecting])
            if pool is not None:
                await pool.close()
        finally:
            self._works.clear()
            if self._is_ours:
                self._is_ours = False
                await asyncio.to_thread(self._ray.shutdown)

    def _connect(self) -> None:
        ray = self._ray
        if ray.is_initialized():
            return
        address = self.address or os.environ.get("RAY_ADDRESS")
        if address is not None:
            _reach(address)
        # What actors print goes to Ray's log files, and not between the lines of the progress.
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        self._is_ours = True
        try:
            ray.init(address=address or "auto", **quiet)
        except ConnectionError:
            if address is not None:
                raise
            ray.init(address="local", include_dashboard=False, **quiet)
            guard.warn_once(
                "ray local",
                f"no Ray cluster was found: one was started on this machine, with {ray.cluster_resources()['CPU']:g} "
                "CPUs, for this collection. Give rt.RayExecutor the address of yours.",
            )

    def _room(self) -> int:
        """Returns the number of actors for which the cluster has CPUs."""
        cpus = float(self._ray.cluster_resources().get("CPU", 1))
        return max(1, int(cpus / self.num_cpus)) if self.num_cpus else max(1, int(cpus))

    def _start(self, number: int) -> RayWorker:
        assert self._pool is not None
        remote = self.rollouts_per_actor, self.grace, self._load, self._pool.lost
        return RayWorker(self._ray, self._options, *remote)

    def _load(self, work: Work) -> tuple[int, Any]:
        """Number of a run, and a reference to what its rollouts share, which is sent to the cluster once."""
        if id(work) not in self._works:
            self._warn_of_local_output(work)
            try:
                reference = self._ray.put(work)
            except Exception as error:
                raise TypeError(
                    f"the agent, or a reward, cannot be sent to a Ray actor ({guard.describe(error)}). Give functions "
                    'that hold no clients, locks or open files, or their place, "module:name".'
                ) from None
            self._works[id(work)] = (work, len(self._works), reference)
        _, number, reference = self._works[id(work)]
        return number, reference

    def _warn_of_local_output(self, work: Work) -> None:
        nodes = sum(bool(node.get("Alive")) for node in self._ray.nodes())
        if nodes > 1 and work.output is not None and "://" not in work.output:
            guard.warn(
                f"the cluster has {nodes} nodes, and the output is the path {work.output}. Each node writes to its "
                "own disk, unless all of them mount this folder. Give an address, such as s3://bucket/runs."
            )


def _reach(address: str) -> None:
    """Raises ConnectionError where nothing listens at the address of a cluster: Ray itself tries for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        if place.hostname is None or place.port is None:
            # A word, such as "auto", or an address of another kind: Ray's to say.
            return
        with socket.create_connection((place.hostname, place.port), CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"there is no Ray cluster at {guard.printable(address, 200)} ({guard.describe(error)}). Give "
            'rt.RayExecutor the address of the head node, "host:6379", or start one there: ray start --head.'
        ) from None
