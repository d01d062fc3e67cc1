"""`rollout-trace serve`: every source, how it ends, and its mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import Answer, Exchange, Reply, ScriptedServer, pack_exchanges
from rollout_trace.testing.serve import main

COMMAND = [sys.executable, "-m", "rollout_trace", "serve"]


class Served:
    """The command, its address, and how it ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = self._line().split()[-1]
        self.variables = dict(self._line().strip().split("=", 1) for _ in range(10))

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def text(self, *said: str) -> str:
        messages: Any = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
        with OpenAI(base_url=self.variables["OPENAI_BASE_URL"], api_key="none", max_retries=0) as client:
            return str(client.chat.completions.create(model="m", messages=messages).choices[0].message.content)


@contextmanager
def serving(
    *arguments: str, code: int = 0, end: Any = signal.SIGINT, told: list[str] | None = None
) -> Iterator[Served]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *arguments], text=True, **pipes) as process:
        try:
            yield Served(process)
            if end is None:
                stdin: IO[str] | None = process.stdin
                assert stdin is not None
                stdin.close()
                process.stdin = None
            else:
                process.send_signal(end)
            out, errors = process.communicate(timeout=60)
            (told if told is not None else []).extend([out, errors])
            assert (process.returncode, errors if code == 0 else "") == (code, "")
        finally:
            process.kill()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("ANSWER = 'from beside'\n")
    path.write_text(
        "from beside import ANSWER\n"
        "def script(request):\n"
        "    if request['messages'][-1]['content'] == 'wrong':\n"
        "        raise ValueError('no answer')\n"
        "    return ANSWER\n"
        "others = ['one', 'two']\n"
    )
    return path


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, None])
def test_a_script_is_served_until_it_is_told_to_end(script: Path, end: Any) -> None:
    told: list[str] = []
    options = ["--stdin"] if end is None else []
    with serving(str(script), *options, end=end, told=told) as served:
        assert served.text("hi") == "from beside"
        assert served.variables["ANTHROPIC_BASE_URL"] == served.url
    assert told == ["1 request\n", ""]


def test_a_name_of_the_file_and_answers_left(script: Path) -> None:
    told: list[str] = []
    with serving(f"{script}:others", told=told) as served:
        assert served.text("hi") == "one"
    assert told == ["1 request, 1 answer left\n", ""]


def test_a_script_that_fails_is_told_at_the_end(script: Path) -> None:
    told: list[str] = []
    with serving(str(script), code=1, told=told) as served, pytest.raises(Exception, match="no answer"):
        served.text("wrong")
    assert told == ["1 request\n", "error: ValueError: no answer\n"]


def test_without_a_script_it_repeats_what_is_said() -> None:
    with serving() as served:
        assert served.text("hi") == "You said: hi"


def test_answers_in_json(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    calls = [{"name": "weather", "arguments": {"city": "Paris"}}, ["now", "{}"]]
    path.write_text(json.dumps(["one", {"text": "two", "tool_calls": calls}, {"status": 503}]))
    with serving(str(path)) as served:
        assert [served.text("hi"), served.text("hi")] == ["one", "two"]
        with pytest.raises(Exception, match="the script answers with status 503"):
            served.text("hi")
    path.write_text(json.dumps({"weather": ["sunny", "very"], "": "what?"}))
    with serving(str(path)) as served:
        assert served.text("weather?") == "sunny"
        assert served.text("weather?", "sunny", "really?") == "very"
        assert served.text("else") == "what?"


def test_rollouts_are_answered_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    answers: Iterator[Answer] = iter([Reply("a one", reasoning="hm"), "a two", "a other", "b one"])
    with ScriptedServer(lambda request: next(answers)) as server, rt.recording(path):
        for said in (["a", "go on"], ["a"], ["b"]):
            with rt.trajectory():
                with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none")) as client:
                    messages: list[Any] = []
                    for text in said:
                        messages.append({"role": "user", "content": text})
                        message = client.chat.completions.create(model="m", messages=messages).choices[0].message
                        messages.append({"role": "assistant", "content": message.content})
    with serving(str(path), code=1) as served:
        assert [served.text("b"), served.text("a")] == ["b one", "a one"]
        assert served.text("a", "a one", "go on") == "a two"
        assert [served.text("a"), served.text("a")] == ["a other", "a one"]
        with pytest.raises(Exception, match="has no rollout of the task 'c', only 'a', 'b'"):
            served.text("c")


def test_exchanges_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    request = b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}'
    answer = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"recorded"}}]}'
    headers = (("content-type", "application/json"),)
    exchange = Exchange("x", "POST", "/v1/chat/completions", request, 200, headers, answer, (len(answer),))
    pack_exchanges([exchange], path)
    with serving(str(path)) as served:
        assert served.text("hi") == "recorded"


BAD = [
    (["nowhere.py"], "there is no file nowhere.py"),
    (["script.py:nothing"], "script.py has no name 'nothing': define a function or a list with it"),
    (["broken.py"], "broken.py cannot be imported: ZeroDivisionError"),
    (["text.txt"], "text.txt is neither a script"),
    (["bad.json"], "bad.json is not JSON"),
    (["number.json"], "number.json holds 3: give a list of answers"),
    (["field.json"], "field.json, the list, answer 2: no field of a Reply or a Fault is called texd"),
    (["call.json"], "is no tool call: write"),
    (["three.json"], "3 is no answer"),
    (["empty.jsonl"], "empty.jsonl holds no"),
    (["folder"], "holds no exchanges"),
    (["number.py"], "the script is 3: use a function of the request"),
    (["none.json"], "none.json holds no answers"),
    (["status.json"], "status.json, the list, answer 2: status is '503': give a whole number."),
    (["hold.json"], "hold is 1: give true or false."),
    (["delay.json"], "delay is True: give a number."),
    (["script.py", "--port", "99999"], "'99999' is no port: use 0 to 65535"),
    (["script.py", "--port", "http"], "'http' is no port: use 0 to 65535"),
    (["script.py", "--latency", "-1"], "use 0 or more"),
    (["script.py", "--tokenizer", "folder"], "holds no tokenizer"),
    (["script.py", "--print-env"], "--print-env needs --port"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_a_mistake_is_a_sentence(
    arguments: Sequence[str],
    message: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    files = {
        "broken.py": "1 / 0",
        "number.py": "script = 3",
        "text.txt": "",
        "bad.json": "{",
        "number.json": "3",
        "field.json": '["a", {"texd": "b"}]',
        "call.json": '[{"tool_calls": [3]}]',
        "three.json": "[3]",
        "empty.jsonl": "",
        "none.json": "[]",
        "status.json": '["a", {"status": "503"}]',
        "hold.json": '[{"hold": 1}]',
        "delay.json": '[{"delay": true}]',
    }
    for name, text in files.items():
        Path(name).write_text(text)
    Path("folder").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 2  # The usage in a line, and the mistake.


def test_the_variables_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-env", "--port", "8123"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "export OPENAI_BASE_URL=http://127.0.0.1:8123/v1" in lines
    assert all(line.startswith("export ") for line in lines)


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
