"""The steps of one trajectory of ART."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rollout_trace.data.model import Step, ToolRun, amend
from rollout_trace.importing.chat import assistant_message
from rollout_trace.importing.exchanges import exchange_steps
from rollout_trace.importing.steps import REBUILT, Thread, number
from rollout_trace.importing.tool_results import tool_runs_of
from rollout_trace.wire.steps import Stores

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields
    from rollout_trace.importing.imported import Job

_PROTOCOLS = {
    "chat_completions": "openai.chat",
    "completions": "openai.completions",
    "responses": "openai.responses",
    "messages": "anthropic.messages",
}
_EARLY = datetime.min.replace(tzinfo=timezone.utc)


class Exchanges:
    """The steps and tool runs of one trajectory."""

    def __init__(self, value: Fields, name: str, job: Job) -> None:
        self.steps: list[Step] = []
        self.tool_runs: list[ToolRun] = []
        self.ended_at: datetime | None = None
        self._name, self._job = name, job
        self._stores = Stores()
        exchanges = value.object("exchanges")
        if exchanges is not None:
            self._add_exchanges(exchanges)
        histories = [value, *value.objects("additional_histories")]
        for history in histories:
            if history.get("messages_and_choices") is not None:
                self._add_history(history)
        self._stores.finish()
        number(self.steps, job.report)
        self.tool_runs = tool_runs_of(self.steps)

    def _add_exchanges(self, exchanges: Fields) -> None:
        found: list[tuple[datetime, int, str, Fields]] = []
        for kind in exchanges.values:
            if kind not in _PROTOCOLS:
                self._job.report.drop(f"exchanges of an unknown kind: {kind}")
                continue
            for one in exchanges.objects(kind):
                # Four lists: what came first is known by the times alone.
                began = one.time("start_time")
                # Our own export writes 1970 where the time is not known.
                found.append((_EARLY if began is None or began.year == 1970 else began, len(found), kind, one))
        for started, _, kind, exchange in sorted(found, key=lambda one: one[:2]):
            ended = exchange.time("end_time")
            known = started if started is not _EARLY else None
            if exchange.object("response") is None:
                exchange.wrong("response", "an object")
                continue
            seconds = None if known is None or ended is None or ended < known else (ended - known).total_seconds()
            self.steps += exchange_steps(
                self._stores,
                f"{self._name}.{len(self.steps)}",
                _PROTOCOLS[kind],
                exchange.mapping("request"),
                exchange.get("response"),
                started_at=known,
                latency=seconds,
            )
            self.ended_at = ended if self.ended_at is None or (ended and ended > self.ended_at) else self.ended_at

    def _add_history(self, history: Fields) -> None:
        thread, tools = Thread(), history.items("tools")
        for item in history.objects("messages_and_choices"):
            if "message" not in item.values:
                thread.add(item.values)
                continue
            # A choice of a chat answer: what a server sends of one, with the ids in it.
            (step,) = exchange_steps(
                self._stores,
                f"{self._name}.{len(self.steps)}",
                "openai.chat",
                None,
                {"object": "chat.completion", "choices": [{**item.values, "index": 0}]},
            )[:1]
            amend(step, messages=thread.span(), tools=tools, attempts=())
            step.metadata = dict(REBUILT)
            self.steps.append(step)
            if step.completion is not None:
                thread.add(assistant_message(step.completion))
