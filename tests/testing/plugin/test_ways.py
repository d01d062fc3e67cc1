"""The ways in which agents call: async, in threads and processes, under xdist, with streams that end early."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from tests.amount import amount

from .project import Project, exchanges_of

ASYNC = """
@pytest.mark.replay("one.jsonl", order="free")  # Whose second call comes first is the machine's choice.
@pytest.mark.{mark}
async def test_async(rollout{more}):
    import rollout_trace as rt
    first, second = await asyncio.gather(
        solve_async("What is the weather in Paris?"), solve_async("What is the weather in Rome?")
    )
    assert (first, second) == ("Paris: 5 degrees.", "Rome: 4 degrees.")
    with rt.tool_run("check") as run:
        run.result = "done"
    rt.reward(1.0)
    assert rollout.trajectory.reward == 1.0
    rollout.assert_steps(4)
    rollout.assert_called("check")
"""


@pytest.mark.parametrize(("mark", "more"), [("asyncio", ""), ("anyio", ", anyio_backend")])
def test_async_tests(project: Project, mark: str, more: str) -> None:
    project.tests("@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n" + ASYNC.format(mark=mark, more=more))
    project.record().assert_outcomes(passed=1)
    project.replay().assert_outcomes(passed=1)
    project.change("in Rome", "in Oslo", "test_agent.py")
    project.replay().assert_outcomes(failed=1)


@pytest.mark.more
def test_workers_of_xdist_record_into_one_file(project: Project) -> None:
    project.tests("""
pytestmark = pytest.mark.replay("shared.jsonl")

@pytest.mark.parametrize("city", [f"City{i}" for i in range(12)])
def test_city(city):
    assert solve(f"What is the weather in {city}?") == f"{city}: {len(city)} degrees."
""")
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    recorded = project.run_apart("-n2", "--replay=record")
    recorded.assert_outcomes(passed=12)
    recorded.stdout.fnmatch_lines(["*test_city[[]City11]: recorded, 2 exchanges"])
    project.monkeypatch.delenv("MODEL_URL")
    assert len({(one.metadata or {})["test"] for one in project.cassette("shared.jsonl")}) == 12
    count = len(project.model.requests)
    # Replayed as it is and, in a folder of its own, with a change, by the same workers.
    changed = project.pytester.mkdir("changed")
    for name in ("test_agent.py", "shared.jsonl"):
        shutil.copyfile(project.pytester.path / name, changed / name)
    project.change("weather in", "weather of", "changed/test_agent.py")
    replayed = project.run_apart("-n2", "--import-mode=importlib", "-opythonpath=.")
    replayed.assert_outcomes(passed=12, failed=12)
    replayed.stdout.fnmatch_lines(["*What is the weather of City*", "FAILED changed/test_agent.py::*"])
    replayed.stdout.no_fnmatch_line("FAILED test_agent.py::*")
    assert len(project.model.requests) == count


@pytest.mark.more
def test_child_processes_of_any_language(project: Project) -> None:
    project.pytester.makepyfile(
        child="""
import json
import os
import urllib.request

body = {"model": "scripted", "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "stream": True}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
)
with urllib.request.urlopen(request) as answer:
    print(answer.read().decode())
""",
        sdk="""
import openai

with openai.OpenAI() as client:
    answer = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hello"}])
    print(answer.choices[0].message.content)
""",
    )
    project.tests("""
import os
import subprocess
import sys

@pytest.mark.replay("child.jsonl")
@pytest.mark.parametrize("program", ["child.py", "sdk.py"])
def test_child(program, rollout):
    out = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True).stdout
    assert "weather" in out if program == "child.py" else out == "Hello.\\n"
    rollout.assert_steps(1)
    assert rollout.steps[0].status == "ok"

@pytest.mark.replay("child.jsonl")
def test_clean_environment():
    keys = {"OPENAI_API_KEY": "sk-the-childs-own-key-0001", "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "child.py"], check=True, env=keys)
    async def run():
        process = await asyncio.create_subprocess_exec(sys.executable, "child.py", env=keys)
        assert await process.wait() == 0
    asyncio.run(run())
""")
    project.tests(
        """
import sys
import rollout_trace as rt

@pytest.mark.replay("child.jsonl")
def test_a_program(rollout):
    # Recorded once, by the server of the test.
    done = asyncio.run(rt.run_program([sys.executable, "-I", "child.py"]))
    assert "weather" in done.stdout, done.stderr
    # One that reads no variable.
    told = "import os, sys; os.environ['OPENAI_BASE_URL'] = sys.argv[1]; exec(open('child.py').read())"
    assert asyncio.run(rt.run_program([sys.executable, "-I", "-c", told, rollout.base_url])).returncode == 0
    rollout.assert_steps(2)

def test_nothing_stands_in(rollout):
    with pytest.raises(AssertionError, match="this test has no model server"):
        rollout.base_url
""",
        "test_program",
    )
    project.monkeypatch.setenv("OPENAI_BASE_URL", project.model.base_url)
    project.monkeypatch.setenv("OPENAI_API_KEY", "sk-the-environments-own-key-0001")
    project.record().assert_outcomes(passed=5)
    project.monkeypatch.delenv("OPENAI_BASE_URL")
    project.monkeypatch.delenv("OPENAI_API_KEY")
    project.replay().assert_outcomes(passed=5)
    assert b"own-key" not in (project.pytester.path / "child.jsonl").read_bytes()


def test_child_processes_of_a_script(project: Project) -> None:
    project.pytester.makepyfile(
        child="""
import json
import os
import sys
import urllib.request

def post(variable, path, **more):
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], **more}
    headers = {"content-type": "application/json", "x-api-key": "sk-the-childs-own-key-0001"}
    request = urllib.request.Request(os.environ[variable] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()

for stream in (False, True):
    post("OPENAI_BASE_URL", "/chat/completions", stream=stream)
    post("ANTHROPIC_BASE_URL", "/v1/messages", stream=stream)
try:
    post("OPENAI_BASE_URL", "/chat/completions")
except OSError as error:
    print(type(error).__name__)
"""
    )
    project.tests("""
import subprocess
import sys
from rollout_trace.testing import Fault

def run(*program):
    return subprocess.run([sys.executable, *program], check=True, capture_output=True, text=True).stdout

def test_any_language(scripted_llm, rollout):
    scripted_llm.script = [*["It is sunny."] * 4, Fault(reset=True)]
    assert run("child.py") == "ConnectionResetError\\n"
    rollout.assert_steps(5)
    assert [step.status for step in rollout.steps] == ["ok"] * 4 + ["error"]
    assert {step.completion.content for step in rollout.steps[:4]} == {"It is sunny."}
    assert [step.protocol for step in rollout.steps[:2]] == ["openai.chat", "anthropic.messages"]

def test_a_refusing_script(scripted_llm, rollout):
    scripted_llm.script = [Fault(status=404)]
    with pytest.raises(subprocess.CalledProcessError):
        run("child.py")
    assert [step.status for step in rollout.steps] == ["error"]
    assert rollout.steps[0].error.status == 404

def test_an_sdk(scripted_llm, rollout):
    scripted_llm.script = ["one", "two", "three"]
    run("-c", "import openai; openai.OpenAI().chat.completions.create(model='m', messages=[])")
    # One of this process is counted once, whatever its address.
    assert solve("What is the weather in Paris?") == "two"
    with agent.OpenAI() as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    rollout.assert_steps(3)
    assert [step.completion.content for step in rollout.steps] == ["one", "two", "three"]
""")
    project.run().assert_outcomes(passed=3)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_forked_processes(project: Project) -> None:
    project.tests("""
import multiprocessing

def run(city, answers):
    answers.put(solve(f"What is the weather in {city}?"))

@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.replay("fork.jsonl")
def test_fork(rollout):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=run, args=("Paris", answers))
    process.start()
    assert answers.get(timeout=60) == "Paris: 5 degrees."
    process.join()
    rollout.assert_steps(2)
""")
    project.record().assert_outcomes(passed=1)
    project.replay().assert_outcomes(passed=1)


@pytest.mark.more
@pytest.mark.amount
def test_many_threads_in_any_order(project: Project) -> None:
    project.tests("""
import random
import threading
from concurrent.futures import ThreadPoolExecutor

SEED = 1

@pytest.mark.replay("many.jsonl")
@pytest.mark.parametrize("own", [True, False])
def test_many(rollout, own):
    import rollout_trace as rt
    order = [(number, "What is the weather in " + " and ".join(f"City{number % 40}x{i}" for i in range(number % 3)))
             for number in range(60)]
    random.Random(SEED).shuffle(order)

    def run(one):
        if not own:
            return solve(one[1])
        with rt.trajectory("worker"):
            return solve(one[1])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, order))
    for (number, _), answer in zip(order, answers):
        cities = [f"City{number % 40}x{i}" for i in range(number % 3)]
        assert answer == " ".join(f"{city}: {len(city)} degrees." for city in cities) or answer == "Hello."
    assert len(rollout.trajectories) == (61 if own else 1)
""")
    project.record().assert_outcomes(passed=2)
    for seed in (1, 2, 3)[: amount(1, 2, 3)]:
        project.change("SEED = ", f"SEED = {seed}", "test_agent.py")
        project.replay().assert_outcomes(passed=2)


def test_retries_cut_streams_and_early_ends_replay_as_they_were(project: Project, model: ScriptedServer) -> None:
    model.script = [
        Fault(status=429, headers={"retry-after": "1", "x-ratelimit-limit-requests": "7"}),
        "after a retry",
        Fault("a stream that is cut off", cut_after=3),
        Fault(status=503, headers={"x-should-retry": "false"}),
        Fault(Reply("long " * 50), hold_after=6),
        Fault("never", hold=True),
    ]
    project.tests("""
from agent import begin, client
import openai

CLIENTS = []

def ask(text, stream=False, **options):
    CLIENTS.append(client(**options))
    return CLIENTS[-1].chat.completions.create(model="scripted", messages=begin(text), stream=stream)

def text_of(stream, events=None):
    text = ""
    for number, event in enumerate(stream):
        if number == events:
            break
        text += event.choices[0].delta.content or ""
    stream.close()
    return text

@pytest.mark.replay("faults.jsonl")
def test_faults(rollout):
    print("RETRY", ask("one").choices[0].message.content)
    with pytest.raises(Exception) as cut:
        text_of(ask("two", stream=True))
    print("CUT", type(cut.value).__name__)
    with pytest.raises(openai.InternalServerError) as error:
        ask("three")
    print("ERROR", error.value.status_code)
    print("CLOSED", text_of(ask("four", stream=True), events=4))
    with pytest.raises(openai.APITimeoutError):
        ask("five", timeout=0.3, max_retries=0)
    print("STATUS", [(step.status, len(step.attempts)) for step in rollout.steps])
    for one in CLIENTS:
        one.close()
""")
    first = project.record("-s")
    first.assert_outcomes(passed=1)
    again = project.replay("-s")
    again.assert_outcomes(passed=1)
    said = re.findall(r"^(?:\S+ )?([A-Z]+ .*)$", str(first.stdout), re.MULTILINE)
    assert [line.split()[0] for line in said] == ["RETRY", "CUT", "ERROR", "CLOSED", "STATUS"]
    assert said == re.findall(r"^(?:\S+ )?([A-Z]+ .*)$", str(again.stdout), re.MULTILINE)
    outcomes = [one.outcome for one in exchanges_of(project.cassette("faults.jsonl"))]
    assert outcomes == ["complete", "complete", "cut", "complete", "closed", "closed"]


def test_answers_come_with_their_pauses_on_request(project: Project, model: ScriptedServer) -> None:
    model.script = Fault("one two three four", delay=0.4)
    project.tests("""
import time

@pytest.mark.replay("slow.jsonl", timing=True)
def test_slow():
    began = time.perf_counter()
    solve("hello", stream=True)
    assert time.perf_counter() - began >= 0.35
""")
    project.record().assert_outcomes(passed=1)
    project.replay().assert_outcomes(passed=1)


def test_a_server_that_cannot_be_reached(project: Project) -> None:
    project.tests("""
import openai

@pytest.mark.replay("gone.jsonl")
def test_gone(rollout):
    with pytest.raises(openai.APIConnectionError), agent.client(max_retries=0) as client:
        client.chat.completions.create(model="scripted", messages=agent.begin("hello"))
    assert rollout.steps[0].status == "error"
""")
    project.run("--replay=record").assert_outcomes(passed=1)
    project.replay().assert_outcomes(passed=1)
    (exchange,) = exchanges_of(project.cassette("gone.jsonl"))
    assert (exchange.outcome, exchange.status) == ("unreachable", None)


def test_a_scripted_model_answers_every_client(project: Project) -> None:
    project.tests("""
import openai

def test_scripted(scripted_llm, rollout):
    scripted_llm.script = ["one", "two"]
    with openai.OpenAI() as named, openai.OpenAI(base_url="https://api.openai.com/v1", api_key="x") as fixed:
        for client, text in ((named, "one"), (fixed, "two")):
            answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
            assert answer.choices[0].message.content == text
    rollout.assert_steps(2)
    assert len(scripted_llm.requests) == 2

def test_too_few(scripted_llm):
    scripted_llm.script = ["one"]
    solve("hello")
    with pytest.raises(openai.BadRequestError):
        solve("hello")

@pytest.mark.replay
def test_both(scripted_llm):
    pass
""")
    result = project.run("--replay=record")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*mark replay cannot use scripted_llm*"])
    result.stdout.fnmatch_lines(["scripted_llm could not answer: IndexError: request 2 came, but the script has 1*"])


def test_the_same_trajectory_twice(project: Project) -> None:
    project.tests("""
@pytest.mark.replay("one.jsonl", engine="vllm")
def test_one(rollout):
    solve("What is the weather in Paris and Rome?", stream=True)
    rollout.assert_trainable()
    rollout.assert_no_drift()
""")
    project.record("--rollout-dir=first", "--rollout-keep=all").assert_outcomes(passed=1)
    project.replay("--rollout-dir=second", "--rollout-keep=all").assert_outcomes(passed=1)
    first, second = (list(rt.read(project.pytester.path / name)) for name in ("first", "second"))
    kept = [[(step.messages, step.tools, step.completion, step.finish_reason, step.usage, step.response_id,
              step.prompt_token_ids.tolist(), step.completion_token_ids.tolist(), step.logprobs.tolist())  # type: ignore[union-attr]
             for step in one.steps] for one in first + second]  # fmt: skip
    assert kept[0] == kept[1]
    (recorded,) = project.cassette("one.jsonl")
    assert [step.completion_token_ids.tolist() for step in recorded.steps] == [one[7] for one in kept[0]]  # type: ignore[union-attr]
