"""One call of ``collect``: its arguments checked, what the output holds read, its rollouts made, its account given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.collection import places
from rollout_trace.collection.calls import interruptible
from rollout_trace.collection.history import Hashes, History
from rollout_trace.collection.job import Executor, Job
from rollout_trace.collection.progress import Monitor
from rollout_trace.collection.reporters import Reporters, StatusFile, reporter_for
from rollout_trace.collection.resume import Earlier, Plan, earlier, exists, found_in, inside
from rollout_trace.collection.runner import Runner
from rollout_trace.collection.serving import LocalExecutor
from rollout_trace.collection.summary import CollectSummary
from rollout_trace.collection.tally import Tally
from rollout_trace.collection.worker import Worker
from rollout_trace.file.addresses import is_address
from rollout_trace.file.annotate import attempts_in, leave_out
from rollout_trace.record.recording import recording

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts

_ROUNDS = 3
"""How often rollouts are made again that were in the output of a worker, and are gone with its disk."""


@dataclass(slots=True, kw_only=True)
class Session:
    """What one call of ``collect`` does."""

    asked: Plan
    """What was asked for, as if the output held nothing."""
    concurrency: int
    most_failures: float
    resume: bool
    progress: bool | Callable[..., object] | None
    executor: Executor | None
    """None: this process."""
    hashes: Hashes
    summary: CollectSummary | None = None
    """Of its run, once that has ended, also by Ctrl-C."""
    _plan: Plan | None = None

    def plan(self, *, write: bool = True) -> Plan:
        """The rollouts to make; reads what the output holds the first time.

        Args:
            write: False: nothing is changed, for a plan that is only looked at.

        Raises:
            FileExistsError: it holds something, and ``resume=False``.
            OSError, ValueError, ImportError: it cannot be read.
        """
        if self._plan is None:
            work = self.asked.work
            spool = work.recording.get("spool")
            if not self.resume and exists(work.output, spool=spool):
                raise FileExistsError(
                    f"{work.shown_output} holds something, and resume=False: give another output, or resume=True to "
                    "go on with it."
                )
            found = earlier(work.output, write=write, spool=spool) if self.resume else Earlier()
            self._plan = replace(self.asked, earlier=found)
        return self._plan

    async def run(self) -> CollectSummary:
        """Makes the rollouts; returns the summary.

        Raises:
            BlockingIOError: another collect writes to the output.
            KeyboardInterrupt: Ctrl-C; what ran has been written.
            CancelledError: the task was cancelled; so has what ran.
            WriteError: something could not be written.
        """
        with places.claimed(self.asked.work.output):
            plan = await asyncio.to_thread(self.plan)
            return await _Run(self, plan).run()


class _Run:
    """The rollouts of one session, and the account of them."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._work = plan.work
        self._tally = Tally(plan.size)
        for facts in plan.kept():
            self._tally.add_earlier(facts)
        self._monitor = Monitor(
            self._tally, concurrency=session.concurrency, output=self._work.shown_output, run_id=self._work.run_id
        )
        self._reporter = Reporters(
            reporter_for(session.progress), StatusFile(places.beside(self._work.output, "status.json"))
        )
        self._history = History(places.history(self._work.output))
        self._began = time.monotonic()
        self._error: BaseException | None = None

        self._runner = Runner(
            plan=plan,
            executor=self._opened(),
            tally=self._tally,
            monitor=self._monitor,
            reporter=self._reporter,
            concurrency=session.concurrency,
            most_failures=session.most_failures,
        )

    async def run(self) -> CollectSummary:
        self._reporter.begin(self._monitor.progress(0))
        for text in (*found_in(self._plan), *self._history.begin(self._session.hashes, run_id=self._work.run_id)):
            self._reporter.note(text)
        work = asyncio.ensure_future(self._guarded(self._make()))
        now: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with interruptible(self._interrupt, lambda: None if now.done() else now.set_result(None)):
            try:
                await asyncio.wait({work, now}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:
                self._error = error
                self._runner.interrupt()
                await asyncio.wait({work, now}, return_when=asyncio.FIRST_COMPLETED)
        summary = self._end()
        if self._error is not None:
            raise self._error
        if self._runner.is_interrupted:
            raise KeyboardInterrupt
        return summary

    async def _make(self) -> None:
        """Makes the rollouts, and waits until they are written."""
        runner = self._runner
        try:
            await self._guarded(runner.run())
        finally:
            # Also where every task of the loop is cancelled at once, as `asyncio.run` does at its end.
            await self._guarded(runner.executor.close())
        await self._guarded(self._make_lost())
        # The facts of the last rollouts are on their way from the thread that wrote them.
        await asyncio.sleep(0)
        if runner.is_interrupted or self._error is not None or self._tally.has_thrown or self._plan.earlier.has_thrown:
            await self._guarded(self._leave_out())
        if self._tally.silent and self._error is None:
            await self._guarded(self._look_inside())

    async def _make_lost(self) -> None:
        """Makes the rollouts again that were lost with their workers."""
        runner = self._runner
        for _ in range(_ROUNDS):
            if not runner.lost or runner.is_interrupted or self._error is not None:
                return
            missing = await asyncio.to_thread(self._missing)
            if not missing:
                return
            self._reporter.note(f"{len(missing)} rollouts were lost with their workers, and are made again")
            for job in missing:
                self._tally.retract(runner.made[job.key])
            await self._guarded(runner.run(iter(missing)))
            await self._guarded(runner.executor.close())

    async def _leave_out(self) -> None:
        """Notes that what child processes wrote in attempts that were thrown away is not to be trained on.

        So it does of attempts that failed in an earlier run, and were made again.
        """
        output = self._work.output
        if not is_address(output):
            thrown = await asyncio.to_thread(lambda: attempts_in(output).thrown)
            await asyncio.to_thread(leave_out, output, thrown)
        elif self._plan.earlier.has_thrown:
            self._reporter.note(
                f"{self._work.shown_output} has steps of attempts that others have taken the places of, and nothing "
                "can be noted of them at an address: rt.groups() leaves them out, an export of trajectories does not"
            )

    async def _look_inside(self) -> None:
        """Counts the calls of programs that agents started: these recorded them by themselves."""
        for facts in await asyncio.to_thread(inside, self._work.output, self._tally.silent):
            self._tally.add_inside(facts)

    async def _guarded(self, part: Awaitable[None]) -> None:
        try:
            await part
        except Exception as error:
            self._error = self._error or error

    def _missing(self) -> list[Job]:
        """The rollouts that were made and are not in the output, now that what lost workers left is written."""
        found = earlier(self._work.output, spool=self._work.recording.get("spool"))
        plan = replace(self._plan, earlier=found, retry_failed=False)
        # Of one that was given up, no trajectory was said to be written.
        written = {key for key, outcome in self._runner.made.items() if outcome.trajectory_id}
        return [job for job in plan.jobs() if job.key in written]

    def _opened(self) -> Executor:
        executor = self._session.executor
        if executor is None:
            worker = Worker(self._work, self._facts_later())
            worker.open()
            return LocalExecutor(worker)
        with recording(self._work.output, **self._work.recording):
            pass  # Raises where nothing can be written to the output, before others try.
        check = getattr(executor, "check", None)
        if check is not None:
            check(self._work)
        return executor

    def _facts_later(self) -> Callable[[Facts], object]:
        """Passes facts on from the thread that writes."""
        loop = asyncio.get_running_loop()

        def pass_on(facts: Facts) -> None:
            try:
                loop.call_soon_threadsafe(self._tally.add_facts, facts)
            except RuntimeError:  # A second Ctrl-C has closed the loop.
                pass

        return pass_on

    def _interrupt(self) -> None:
        self._reporter.note("interrupted: running rollouts are cut and written; Ctrl-C again ends at once")
        self._runner.interrupt()

    def _end(self) -> CollectSummary:
        runner = self._runner
        summary = self._tally.summary(
            run_id=self._work.run_id,
            output=self._work.shown_output,
            seconds=time.monotonic() - self._began,
            interrupted=runner.is_interrupted or isinstance(self._error, asyncio.CancelledError),
            stopped=runner.stopped,
        )
        self._session.summary = summary
        self._monitor.state = "ended"
        guard.run_all("history", lambda: self._history.end(summary))
        self._reporter.end(self._monitor.progress(0), summary)
        if summary.interrupted:
            self._reporter.note(f"run the same again to go on: what was made is in {self._work.shown_output}")
        return summary
