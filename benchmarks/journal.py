"""What the journal adds to a call, how fast it is recovered, and how it grows with a long agent."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import rollout_trace as rt
from benchmarks import payloads
from benchmarks.clients import Caller, ensure_recorded, post, sync_client
from benchmarks.payloads import Exchange
from benchmarks.report import Effort, Row, at_least, at_most, differences, ratios, spread
from benchmarks.timing import interleave
from benchmarks.trajectories import LongAgent
from rollout_trace import wire
from rollout_trace.file.writer import JSONLWriter
from rollout_trace.record.journal import Journal
from rollout_trace.record.state import state_of

SPEED = 200
"""MB of journal a second."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with tempfile.TemporaryDirectory() as folder:
        for exchange, times, rounds, limit in (
            (payloads.small(), 150, 24, None),
            (payloads.large(), 24, 24, 1.02),
            (payloads.stream(), 12, 20, 1.02),
        ):
            yield _calling_thread(exchange, Path(folder), effort, times=times, rounds=rounds, limit=limit)
        yield _recovery(Path(folder) / "recovered.jsonl", effort)
        yield _growth(Path(folder) / "grown.jsonl", effort.size(200, 60))
    ensure_recorded()


@contextmanager
def _journaled(journal: Journal) -> Iterator[rt.Trajectory]:
    """A trajectory whose calls go to a journal."""
    with rt.trajectory(task="bench/1") as trajectory:
        state = state_of(trajectory)
        assert state is not None
        assert state.log is not None
        state.log.journal = journal.trajectory(trajectory)
        yield trajectory


def _calling_thread(
    exchange: Exchange, folder: Path, effort: Effort, *, times: int, rounds: int, limit: float | None
) -> Row:
    """Bare, recorded, and recorded with a journal. The ratio is of the bare call."""
    bare, caller = Caller([exchange]), Caller([exchange], recorded=True)
    arms: dict[str, Callable[[], object]] = {}

    @contextmanager
    def new_trajectories() -> Iterator[None]:
        journal = Journal(folder / "calls.jsonl")
        with rt.trajectory():
            arms["recorded"] = rt.propagate(caller.__call__)
            with _journaled(journal):
                arms["journal"] = rt.propagate(caller.__call__)
                yield
        journal.close()
        shutil.rmtree(journal.path, ignore_errors=True)

    actions: dict[str, Callable[[], object]] = {
        "bare": bare,
        "recorded": lambda: arms["recorded"](),
        "journal": lambda: arms["journal"](),
    }
    # Fewer calls a round than may wait, so that none is decoded meanwhile.
    found = interleave(actions, rounds=effort.repeat(rounds), times=effort.times(times), around=new_trajectories)
    cpu = {name: timings.cpu for name, timings in found.items()}
    whole = [
        one + with_it - without
        for one, with_it, without in zip(cpu["bare"], cpu["journal"], cpu["recorded"], strict=True)
    ]
    micro = [[each * 1e6 for each in cpu[name]] for name in ("journal", "recorded")]
    more = f"+{differences(*micro).show('.0f')} µs on {spread(cpu['bare']).middle * 1e6:,.0f}"
    what = f"{exchange.name}, CPU of the calling thread that the journal adds"
    return at_most(what, ratios(whole, cpu["bare"]), limit, form=".3f", unit="×", more=more)


def _recovery(output: Path, effort: Effort) -> Row:
    """Reading a journal of single 63 kB calls with different contents, checked, decoded, into trajectories."""
    calls = effort.size(600, 150)
    journal = Journal(output)
    call = Caller([payloads.large(seed) for seed in range(50)], recorded=True)
    for _ in range(calls // 10):
        with _journaled(journal):
            for _ in range(10):
                call()
    journal.close()
    size = sum(path.stat().st_size for path in journal.path.iterdir())
    speeds = []
    for _ in range(effort.repeat(8)):
        began = time.thread_time()
        found = rt.recover(output)
        speeds.append(size / (time.thread_time() - began) / 1e6)
        assert sum(len(one.steps) for one in found) == calls
        del found
    exchanges = [payloads.large(seed) for seed in range(50)]
    began = time.thread_time()
    for one in exchanges:
        wire.decode("openai.chat", one.request, one.body, content_type=one.content_type)
    alone = size / calls * 50 / (time.thread_time() - began) / 1e6
    more = f"{size / 1e6:,.0f} MB, {calls} calls; `wire.decode` alone, of the same calls: {alone:,.0f} MB/s"
    return at_least("recovered, 63 kB calls", spread(speeds), SPEED, form=".0f", unit=" MB/s", more=more)


def _growth(output: Path, turns: int) -> Row:
    """Bytes in the journal of a long agent, beside its line, which has what is new in each turn."""
    agent = LongAgent(0)
    exchanges = [agent.turn() for _ in range(turns)]
    journal = Journal(output)
    client = rt.wrap_openai(sync_client(iter(exchanges)))
    with _journaled(journal) as trajectory:
        for exchange in exchanges:
            post(client, exchange)
    journal.close()
    size = sum(path.stat().st_size for path in journal.path.iterdir())
    line = output.with_name("line.jsonl")
    with JSONLWriter(line) as writer:
        writer.write(trajectory)
    ratio = size / line.stat().st_size
    more = f"{size / 1e6:,.1f} MB; {agent.bytes_sent / 1e6:,.1f} MB sent and answered, {agent.distinct_tokens:,} tokens"
    return at_most(f"journal of an agent of {turns} turns, beside its line", spread([ratio]), 3, form=".2f", unit="×",
                   more=more)  # fmt: skip
