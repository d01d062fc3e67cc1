"""Runs an unmodified program in a process of its own, and compares what was recorded with the server's log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

import rollout_trace as rt
from rollout_trace import wire
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests.agents.script import AtOnce, Model, final, number_of, question, two_turns
from tests.agents.six import COUNT
from tests.clients.openai.oracle import assert_said

Order: TypeAlias = Literal["before", "after"]

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
NUMBER = 17
ADDED = ("logprobs", "return_token_ids", "return_weight_versions", "stream_options", "top_logprobs")
TIMEOUT = 300
"""Seconds after which a program is stopped: none waits for anything but the loopback server."""

# What differs from run to run: ids that litellm, magentic and BeeAI make for tool calls, times in prompts and logs.
_RANDOM = re.compile(
    rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    rb'|(?<=")(?:[0-9a-f]{9}|call_[0-9a-z]{8})(?=")'
    rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?"
    rb"|\d\d:\d\d UTC"
)
_ENDS: dict[str, str | tuple[str, ...]] = {
    "openai.chat": "/chat/completions",
    "openai.completions": "/completions",
    "openai.responses": "/responses",
    "anthropic.messages": "/messages",
    "ollama.chat": "/api/chat",
    "ollama.generate": "/api/generate",
    "google.generate_content": ("ateContent", ":streamGenerateContent"),
}
# The steps of a call as the server's bytes give them are compared in these.
_COMPARED = ("response_id", "response_model", "model", "messages", "tools", "completion", "finish_reason", "usage")
_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")


@dataclass(frozen=True)
class Agent:
    """A program of `programs/`, and what is to be recorded of it."""

    program: str
    """File name, without `.py`. It prints the answer to the question in `sys.argv[1]`; its `run(question)` gives it."""
    protocol: str = "openai.chat"
    turns: int = 2
    """Generation requests for one question."""
    streams: bool = False
    """Whether its answers are streamed."""
    engine: str = "vllm"
    """What is asked for; empty where the requests of this framework cannot take more fields."""
    model: Model = two_turns
    """What the server answers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables of the process."""
    launch_with_engine: bool = False
    """Whether `rollout-trace run` is given the engine. Without it, every request has to be the bare program's."""
    order: Order = "before"
    """Whether `rt.instrument()` comes before the program is imported, or after."""
    at_once: bool = True
    """False where the framework answers one question after another, even if asked in six threads."""

    @property
    def name(self) -> str:
        """For pytest."""
        return "-".join([self.program, *filter(None, self.environment.values()), *["ids"] * self.launch_with_engine])


@dataclass(frozen=True)
class Run:
    """A process that has ended."""

    output: str
    errors: str
    requests: Sequence[RequestRecord]
    """Those that generate, in the order in which they began."""
    trajectories: Sequence[rt.Trajectory] = ()

    @property
    def steps(self) -> list[rt.Step]:
        """Of all trajectories."""
        return [step for trajectory in self.trajectories for step in trajectory.steps]


def serve(agent: Agent, *, at_once: bool = False) -> ScriptedServer:
    """The agent's model."""
    model = AtOnce(agent.model, COUNT) if at_once else agent.model

    def script(request: Mapping[str, Any], *, record: RequestRecord) -> Any:
        return model(request, record)

    return ScriptedServer(script)


def generating(agent: Agent, server: ScriptedServer) -> list[RequestRecord]:
    """The requests of a server that generate."""
    return [one for one in server.requests if one.method == "POST" and one.path.endswith(_ENDS[agent.protocol])]


def variables(agent: Agent, server: ScriptedServer, home: Path) -> dict[str, str]:
    """The environment of a program: where its model is, a key that opens nothing, and no network but the loopback."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return kept | {
        # Imports of large frameworks take twice as long where their bytecode is not kept.
        "PYTHONDONTWRITEBYTECODE": "",
        # litellm orders fields of its requests as a set of strings happens to be.
        "PYTHONHASHSEED": "0",
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "default",
        "MODEL": "scripted",
        "MODEL_URL": server.base_url,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_BASE": server.base_url,
        "GENERIC_BASE_URL": server.base_url,
        "HOSTED_VLLM_API_KEY": "none",
        "HOSTED_VLLM_API_BASE": server.base_url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_BASE": server.url,
        "GROQ_API_KEY": "none",
        "GROQ_BASE_URL": server.url,
        "OLLAMA_HOST": server.url,
        "OLLAMA_API_BASE": server.url,
        "GEMINI_API_KEY": "none",
        "GOOGLE_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": server.url,
        # No framework may report home, or look for prices of models in the network.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OTEL_SDK_DISABLED": "true",
        "DO_NOT_TRACK": "1",
        **agent.environment,
    }


def _run(agent: Agent, command: Sequence[str], folder: Path, *, at_once: bool = False) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    with serve(agent, at_once=at_once) as server:
        done = subprocess.run(
            [sys.executable, *command],
            env=variables(agent, server, folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        server.wait_idle()
        requests = generating(agent, server)
    # Where a program prints its home, it is another one in each run; of the same length, for lines that are wrapped.
    output = _RANDOM.sub(b"ID", done.stdout.replace(str(folder).encode(), b"~")).decode()
    errors = done.stderr.decode()
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{output[-2000:]}\n{errors[-6000:]}"
    return Run(output, errors, requests)


def _recorded(run: Run, output: Path) -> Run:
    trajectories = list(rt.read(output)) if output.exists() else []
    return Run(run.output, run.errors, run.requests, trajectories)


def bare(agent: Agent, folder: Path) -> Run:
    """The program by itself."""
    return _run(agent, [str(PROGRAMS / f"{agent.program}.py"), question(NUMBER)], folder / "bare")


def launched(agent: Agent, folder: Path) -> Run:
    """The program under `rollout-trace run`."""
    output = folder / "launched.jsonl"
    ask = ["--engine", agent.engine] if agent.launch_with_engine else []
    launcher = ["-m", "rollout_trace", "run", "-o", str(output), *ask]
    program = [sys.executable, str(PROGRAMS / f"{agent.program}.py"), question(NUMBER)]
    return _recorded(_run(agent, [*launcher, *program], folder / "rt-1"), output)


def six(agent: Agent, folder: Path) -> Run:
    """The program's `run`, six times at once under `rt.instrument()`."""
    output = folder / "six.jsonl"
    program = str(PROGRAMS / f"{agent.program}.py")
    command = ["-m", "tests.agents.six", program, str(output), agent.engine, agent.order]
    return _recorded(_run(agent, command, folder / "rt-6", at_once=agent.at_once), output)


def check_bare(agent: Agent, run: Run) -> None:
    """The program works, and asks its model as the case describes it."""
    assert final(NUMBER) in run.output, run.output + run.errors
    assert len(run.requests) == agent.turns
    for record in run.requests:
        assert record.status == 200
        assert number_of(record) == NUMBER
        assert is_streamed(record) == agent.streams


def is_streamed(record: RequestRecord) -> bool:
    """Whether an answer was a stream, by its content type."""
    kind = dict(record.response_headers).get("content-type", "")
    return kind.startswith(("text/event-stream", "application/x-ndjson"))


def check_launched(agent: Agent, run: Run, plain: Run) -> None:
    """The program has done what it does by itself, and every request is a step of one trajectory."""
    engine = agent.engine if agent.launch_with_engine else ""
    assert run.output == plain.output
    assert [comparable(record, engine) for record in run.requests] == [
        comparable(record, engine) for record in plain.requests
    ]
    (trajectory,) = run.trajectories
    assert trajectory.status == "completed"
    assert_recorded(agent, trajectory.steps, run.requests, engine)


def comparable(record: RequestRecord, engine: str) -> object:
    """A request as bytes; where an engine was asked, as JSON without the added fields."""
    body = _RANDOM.sub(b"ID", record.body)
    if not engine:
        return record.path, body
    return record.path, {name: value for name, value in json.loads(body).items() if name not in ADDED}


def check_six(agent: Agent, run: Run) -> None:
    """Every rollout's requests are the steps of its own trajectory, in order."""
    answers = run.output.splitlines()[-COUNT:]
    assert all(final(number) in answer for number, answer in zip(range(COUNT), answers, strict=True)), answers
    by_name = {str(trajectory.name): trajectory for trajectory in run.trajectories}
    assert sorted(by_name) == [f"rollout {number}" for number in range(COUNT)]
    assert len(run.trajectories) == COUNT
    assert len(run.requests) == len(run.steps) == COUNT * agent.turns
    for number in range(COUNT):
        mine = [record for record in run.requests if number_of(record) == number]
        assert len(mine) == agent.turns
        assert_recorded(agent, by_name[f"rollout {number}"].steps, mine, agent.engine)


def assert_recorded(agent: Agent, steps: Sequence[rt.Step], records: Sequence[RequestRecord], engine: str = "") -> None:
    """The steps are the requests, each once and in their order, token for token."""
    assert len(steps) == len(records), ([step.response_id for step in steps], [record.path for record in records])
    for step, record in zip(steps, records, strict=True):
        assert step.protocol == agent.protocol
        assert step.status == "ok"
        # An attempt that could not connect in time, as a slow machine has them, is not in the server's log.
        assert [attempt.status for attempt in step.attempts if attempt.status is not None] == [200]
        _assert_equal(step, expected(agent.protocol, record), engine)
    if engine:
        assert all(step.prompt_token_ids is not None and step.logprobs is not None for step in steps)
        assert_said(steps, records)


def expected(protocol: str, record: RequestRecord) -> rt.Step:
    """The step of an exchange as the server has it."""
    kind = dict(record.response_headers).get("content-type", "application/json")
    (step,) = wire.decode(protocol, record.body, record.response_body, content_type=kind, model=_model_of(record))
    return step


def _model_of(record: RequestRecord) -> str | None:
    # Google's requests have the model in their path: `…/models/NAME:generateContent`.
    found = re.search(r"/models/([^/:]+):", record.path)
    return found[1] if found else None


def _assert_equal(step: rt.Step, said: rt.Step, engine: str) -> None:
    for name in _COMPARED:
        assert getattr(step, name) == getattr(said, name), name
    for name in _TOKENS:
        ours, theirs = getattr(step, name), getattr(said, name)
        assert (None if ours is None else ours.tolist()) == (None if theirs is None else theirs.tolist()), name
    if not engine:
        assert step.sampling == said.sampling


class EachAgent:
    """The tests of an agent; a subclass in each environment's folder is parametrized with its agents."""

    def test_is_recorded_by_the_launcher(self, agent: Agent, tmp_path: Path) -> None:
        """`rollout-trace run` changes nothing that the program or its model can see, and misses no request."""
        plain = bare(agent, tmp_path)
        check_bare(agent, plain)
        check_launched(agent, launched(agent, tmp_path), plain)

    def test_six_at_once_are_kept_apart(self, agent: Agent, tmp_path: Path) -> None:
        """With `rt.instrument()` alone."""
        check_six(agent, six(agent, tmp_path))


def each(*agents: Agent) -> Any:
    """Parametrizes a subclass of `EachAgent`.

    With the variable `ROLLOUT_TRACE_AGENTS=part`, as in CI, a program has one case: streamed and with ids if it can.
    """
    chosen = list(agents)
    if os.environ.get("ROLLOUT_TRACE_AGENTS") == "part":
        best: dict[str, Agent] = {}
        for agent in agents:
            other = best.setdefault(agent.program, agent)
            if (agent.streams, agent.engine) > (other.streams, other.engine):
                best[agent.program] = agent
        chosen = list(best.values())
    return pytest.mark.parametrize("agent", chosen, ids=[agent.name for agent in chosen])
