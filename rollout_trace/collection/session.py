"""One call of ``collect``: its arguments checked, what the output holds read, its rollouts made, its account given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.collection import places
from rollout_trace.collection.calls import interruptible
from rollout_trace.collection.history import Hashes, History
from rollout_trace.collection.job import Executor, Job
from rollout_trace.collection.progress import Monitor
from rollout_trace.collection.reporters import Reporters, StatusFile, Told, figures_of, reporter_for
from rollout_trace.collection.resume import Earlier, Plan, earlier, exists, found_in, inside
from rollout_trace.collection.runner import Jobs, Runner
from rollout_trace.collection.serving import LocalExecutor
from rollout_trace.collection.stream import Known, Listeners, Stream
from rollout_trace.collection.summary import CollectSummary
from rollout_trace.collection.tally import Tally
from rollout_trace.collection.worker import Family, Worker
from rollout_trace.data.episodes import STALE, episode_of
from rollout_trace.file.addresses import is_address, is_folder_target
from rollout_trace.file.annotate import append_notes, attempts_in, leave_out, leave_out_note, of_episodes
from rollout_trace.record.recording import recording

if TYPE_CHECKING:
    from rollout_trace.collection.facts import Facts
    from rollout_trace.collection.items import Key
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.groups import Group

_ROUNDS = 3
"""How often rollouts are made again that were in the output of a worker, and are gone with its disk."""


@dataclass(slots=True, kw_only=True)
class Session:
    """One call of ``collect``."""

    asked: Plan
    """What was asked for, as if the output held nothing."""
    concurrency: int
    most_failures: float
    resume: bool
    progress: bool | Callable[..., object] | None
    executor: Executor | None
    hashes: Hashes
    stream: Stream | None = None
    """Says which rollouts are made; None: those of the plan, as soon as there is a place for each."""
    log: Callable[[dict[str, float]], object] | None = None
    """Called with the figures of the stream at each group that is handed over."""
    summary: CollectSummary | None = None
    """Of its run, once that has ended, also by Ctrl-C."""
    _plan: Plan | None = None

    def plan(self, *, write: bool = True) -> Plan:
        """The rollouts to make; reads what the output holds the first time, and changes nothing without ``write``.

        Raises FileExistsError where it holds something with ``resume=False``; as ``earlier`` where it cannot be read.
        """
        work = self.asked.work
        if work.output is None:
            return self.asked
        if self._plan is None:
            spool = work.recording.get("spool")
            if not self.resume and exists(work.output, spool=spool):
                raise FileExistsError(
                    f"{work.shown_output} is not empty, and resume=False. Give another output, or resume=True "
                    "to continue it."
                )
            found = earlier(work.output, write=write, spool=spool) if self.resume else Earlier()
            self._plan = replace(self.asked, earlier=found)
        return self._plan

    async def run(self) -> CollectSummary:
        """Makes the rollouts; returns the summary. Raises as ``rt.collect``, and BlockingIOError of ``claimed``."""
        with places.claimed(self.asked.work.output):
            plan = await asyncio.to_thread(self.plan)
            known = Known() if self.stream is None else await asyncio.to_thread(_known, plan)
            return await _Run(self, plan, known).run()


def _known(plan: Plan) -> Known:
    """The groups of a stream that were handed over, and the rollouts of the others, which the output holds."""
    output, latest = plan.work.output, plan.earlier.latest
    if output is None or not latest:
        return Known()
    given = History(places.history(output)).given()
    wanted = {facts.episode: key for key, facts in latest.items() if plan.is_done(key) and facts.group not in given}
    runs: dict[Key, list[Trajectory]] = {}
    for _, one in of_episodes(output, wanted.keys()):
        runs.setdefault(wanted[episode_of(one)], []).append(one)
    return Known(given, runs)


class _Run:
    """The rollouts of one session, and the account of them."""

    def __init__(self, session: Session, plan: Plan, known: Known) -> None:
        self._session = session
        self._stream = session.stream
        self._plan = plan
        self._work = plan.work
        stream = session.stream
        self._tally = Tally(plan.size if stream is None else plan.samples * (stream.size or 0))
        for facts in plan.kept():
            self._tally.add_earlier(facts)
        self._monitor = Monitor(
            self._tally,
            concurrency=session.concurrency,
            output=self._work.shown_output,
            run_id=self._work.run_id,
            stream=stream,
        )
        output = self._work.output
        kept = [] if output is None else [StatusFile(places.beside(output, "status.json"))]
        self._reporter = Reporters(reporter_for(session.progress), *kept)
        self._history = None if output is None else History(places.history(output))
        self._log = Told(session.log, "log")
        self._stale: set[str] = set()
        if stream is not None:
            on = Listeners(self._is_stale, self._was_taken, self._was_dropped, self._was_left)
            stream.bind(plan, self._tally, known, on=on, flush=self._flush)
        self._began = time.monotonic()
        self._error: BaseException | None = None

        self._runner = Runner(
            plan=plan,
            executor=self._opened(),
            source=Jobs(plan.jobs()) if stream is None else stream,
            tally=self._tally,
            monitor=self._monitor,
            reporter=self._reporter,
            concurrency=session.concurrency if stream is not None else min(session.concurrency, plan.size),
            most_failures=session.most_failures,
            keeps_outcomes=stream is None and session.executor is not None,
        )

    async def run(self) -> CollectSummary:
        self._reporter.begin(self._monitor.progress(0))
        texts = found_in(self._plan)
        if self._history is not None:
            texts += self._history.begin(self._session.hashes, run_id=self._work.run_id)
        for text in texts:
            self._reporter.note(text)
        work = asyncio.ensure_future(self._guarded(self._make()))
        now: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Of a stream, Ctrl-C reaches the consumer, who closes it.
        interrupts = interruptible(self._interrupt, lambda: None if now.done() else now.set_result(None))
        with interrupts if self._stream is None else nullcontext():
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
        is_cut = runner.is_interrupted or self._error is not None
        if is_cut or self._stale or self._tally.has_thrown or self._plan.earlier.has_thrown:
            await self._guarded(self._leave_out())
        if self._tally.silent and self._error is None:
            await self._guarded(self._look_inside())

    async def _make_lost(self) -> None:
        """Makes the rollouts again that were lost with their workers."""
        runner = self._runner
        for _ in range(_ROUNDS):
            if not (runner.lost and runner.keeps_outcomes) or runner.is_interrupted or self._error is not None:
                return
            missing = await asyncio.to_thread(self._missing)
            if not missing:
                return
            self._reporter.note(f"{len(missing)} rollouts were lost with their workers, and are made again")
            for job in missing:
                self._tally.retract(runner.made[job.key])
            await self._guarded(runner.run(Jobs(iter(missing))))
            await self._guarded(runner.executor.close())

    async def _leave_out(self) -> None:
        """Notes that what child processes wrote in attempts that were thrown away is not to be trained on."""
        output = self._work.output
        if output is None:
            return
        if not is_address(output):
            await asyncio.to_thread(leave_out, output, self._stale, note=STALE)
            thrown = await asyncio.to_thread(lambda: attempts_in(output).thrown)
            await asyncio.to_thread(leave_out, output, thrown)
        elif self._plan.earlier.has_thrown:
            self._reporter.note(
                f"{self._work.shown_output} has steps of attempts that were made again, and at an address they cannot "
                "be marked: rt.groups() leaves them out, but an export of trajectories keeps them"
            )

    async def _look_inside(self) -> None:
        """Counts the calls of programs that agents started: these recorded them by themselves."""
        output = self._work.output
        if output is not None:
            for facts in await asyncio.to_thread(inside, output, self._tally.silent):
                self._tally.add_inside(facts)

    def _is_stale(self, trajectories: Sequence[Trajectory]) -> None:
        """Notes that a rollout was too old when it could have been handed over."""
        output = self._work.output
        if output is None or not trajectories:
            return
        if is_address(output) or is_folder_target(output):
            # At the end: in which of its files they are is not known.
            self._stale.add(episode_of(trajectories[0]))
        else:
            notes = [leave_out_note(one, STALE) for one in trajectories]
            try:
                append_notes(output, notes)
            except Exception as error:  # The disk is full, perhaps: once more at the end.
                self._stale.add(episode_of(trajectories[0]))
                guard.failed("stale", None, error)

    async def _flush(self) -> None:
        executor = self._runner.executor
        if isinstance(executor, LocalExecutor):
            await executor.flush()

    def _was_taken(self, group: Group) -> None:
        if self._history is not None:
            self._history.taken(str(group.id))
        self._was_dropped(group)

    def _was_dropped(self, group: Group) -> None:
        self._log.tell(lambda: figures_of(self._runner.progress(), group))

    def _was_left(self) -> None:
        if self._history is not None:
            self._history.flush()

    async def _guarded(self, part: Awaitable[None]) -> None:
        try:
            await part
        except Exception as error:
            self._error = self._error or error

    def _missing(self) -> list[Job]:
        """The rollouts that were made and are not in the output, now that what lost workers left is written."""
        assert self._work.output is not None
        found = earlier(self._work.output, spool=self._work.recording.get("spool"))
        plan = replace(self._plan, earlier=found, retry_failed=False)
        # Of one that was given up, no trajectory was said to be written.
        written = {key for key, outcome in self._runner.made.items() if outcome.trajectory_id}
        return [job for job in plan.jobs() if job.key in written]

    def _opened(self) -> Executor:
        executor = self._session.executor
        if executor is None:
            worker = Worker(
                self._work, self._written_later(), None if self._stream is None else self._stream.versions.of_call
            )
            worker.open()
            return LocalExecutor(worker)
        if self._work.output is not None:
            with recording(self._work.output, **self._work.recording):
                pass  # Raises where nothing can be written to the output, before others try.
        check = getattr(executor, "check", None)
        if check is not None:
            check(self._work)
        return executor

    def _written_later(self) -> Callable[[Family, Facts | None], object]:
        """Passes on what was written, from the thread that writes."""
        loop, stream = asyncio.get_running_loop(), self._stream

        def pass_on(family: Family, facts: Facts | None) -> None:
            try:
                if facts is not None:
                    loop.call_soon_threadsafe(self._tally.add_facts, facts)
                if stream is not None and family.key is not None:
                    loop.call_soon_threadsafe(stream.written, family.key, family.written)
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
        if (history := self._history) is not None:
            guard.run_all("history", lambda: history.end(summary))
        self._reporter.end(self._monitor.progress(0), summary)
        if summary.interrupted and history is not None:
            self._reporter.note(f"run it again to continue: the rollouts made so far are in {self._work.shown_output}")
        return summary
