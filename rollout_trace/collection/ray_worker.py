"""A worker of ``RayExecutor``: an actor of a Ray cluster, and how this process sees it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_trace import guard
from rollout_trace.collection.job import Job, Outcome, Work, WorkerLost
from rollout_trace.collection.pool import RemoteWorker
from rollout_trace.collection.process_main import finish_all, portable

MOST_AT_ONCE = 10_000
"""Calls that an actor takes at the same time; more would wait, the question whether it answers among them."""
PATIENCE = 30.0
"""Seconds without a place for an actor in the cluster, until it is said."""


class RolloutActor:
    """Makes rollouts in the event loop of an actor."""

    def __init__(self) -> None:
        # A cluster that was started by an instrumented process has its variables: what is recorded here has no parent.
        for name in [name for name in os.environ if name.startswith("ROLLOUT_TRACE_")]:
            del os.environ[name]
        self._works: dict[int, Work] = {}

    async def open(self, number: int, work: Work) -> None:
        """Takes what the rollouts of a run share."""
        self._works[number] = work

    async def make(self, number: int, job: Job) -> Outcome | BaseException:
        """Makes a rollout; returns the exception that hindered it."""
        try:
            made: Job = replace(job, work=self._works[number])
            return await made.arun()
        except Exception as error:
            return portable(error)

    async def answer(self) -> None:
        """Returns at once."""

    async def finish(self) -> list[str]:
        """Completes what was recorded here; returns why some of it could not be written."""
        return await asyncio.to_thread(finish_all, list(self._works.values()))


class RayWorker(RemoteWorker):
    """An actor, as this process sees it."""

    patience = PATIENCE
    place = "a Ray actor"

    def __init__(self, ray: Any, options: Mapping[str, Any], *remote: Any) -> None:
        super().__init__(*remote)
        self._ray = ray
        self._options = options
        self._opened: dict[int, asyncio.Task[Any]] = {}
        self._references: dict[asyncio.Future[Outcome], Any] = {}
        self._actor = ray.remote(RolloutActor).options(max_concurrency=MOST_AT_ONCE, **options).remote()

    async def open(self, work: Work) -> None:
        """Opens the worker, as in ``PoolWorker``. Raises TypeError if the agent or a reward cannot be rebuilt there."""
        number, reference = self._load(work)
        if number not in self._opened:
            self._opened[number] = asyncio.ensure_future(self._result(self._actor.open.remote(number, reference)))
        opening = self._opened[number]
        done, _ = await asyncio.wait([opening], timeout=PATIENCE)
        if not done:
            asked = ", ".join(f"{name}={value}" for name, value in self._options.items() if name != "runtime_env")
            guard.warn_once(
                "ray resources",
                f"Ray has found no room for an actor ({asked}) for {PATIENCE:g} seconds; the cluster has "
                f"{_resources(self._ray)}. The collection waits for it. Ask for less in rt.RayExecutor(...), or add "
                "nodes.",
            )
        try:
            await asyncio.shield(opening)
        except (WorkerLost, asyncio.CancelledError):
            raise
        except Exception as error:
            raise TypeError(
                f"a Ray actor cannot make the agent, or the reward, from what it was sent ({guard.describe(error)}). "
                "Their modules, and rollout_trace, have to be importable on each node: install them there, or send the "
                'folder with rt.RayExecutor(runtime_env={"working_dir": "."}).'
            ) from None

    def send(self, number: int, job: Job) -> asyncio.Future[Outcome]:
        reference = self._actor.make.remote(number, job)
        made: asyncio.Future[Outcome] = asyncio.ensure_future(self._outcome(reference))
        self._references[made] = reference
        made.add_done_callback(self._references.pop)
        return made

    def stop(self, made: asyncio.Future[Outcome]) -> None:
        if made in self._references:
            self._ray.cancel(self._references[made])

    async def end(self) -> None:
        failures: list[str] = []
        try:
            if self._why is None:
                finishing = asyncio.ensure_future(self._result(self._actor.finish.remote()))
                failures = await asyncio.wait_for(finishing, self._grace)
        except asyncio.TimeoutError:
            failures = [f"it did not end within {self._grace:g} seconds and was killed"]
        except WorkerLost:
            pass  # Its rollouts have said so.
        except Exception as error:
            failures = [guard.describe(error)]
        finally:
            self._ray.kill(self._actor)
        for failure in failures:
            guard.warn(f"a Ray actor may not have written all that it recorded: {failure}")

    def ask(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._result(self._actor.answer.remote()))

    def kill(self, why: str) -> None:
        self._why = self._why or why
        self._ray.kill(self._actor)

    async def _outcome(self, reference: Any) -> Outcome:
        result = await self._result(reference)
        if isinstance(result, BaseException):
            raise result
        outcome: Outcome = result
        return outcome

    async def _result(self, reference: Any) -> Any:
        """Returns a call's result. Raises its exception, CancelledError, or WorkerLost if the actor has ended."""
        ray = self._ray
        try:
            return await asyncio.wrap_future(reference.future())
        except ray.exceptions.TaskCancelledError:
            raise asyncio.CancelledError from None
        except ray.exceptions.RayTaskError as error:
            raise getattr(error, "cause", error) from None
        except ray.exceptions.RayError as error:
            self._on_lost(self)
            why = self._why or _first_line(error)
            raise WorkerLost(f"the Ray actor that made the rollout has ended: {why}") from None


def _first_line(error: BaseException) -> str:
    """The reason in an exception of Ray's, whose text has many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    return guard.printable(f"{type(error).__name__}: {reason}", 300)


def _resources(ray: Any) -> str:
    found = {name: value for name, value in ray.cluster_resources().items() if not name.startswith("node:")}
    known = ", ".join(f"{name} {value:g}" for name, value in sorted(found.items()) if "memory" not in name)
    return known or "none"
