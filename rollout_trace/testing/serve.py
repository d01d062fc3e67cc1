"""``rollout-trace serve SOURCE``: a scripted server for agents in any language.

``python -m rollout_trace.testing.serve SOURCE`` does the same without the package click.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import cycle
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.data.exchange import Exchange

from .conversations import by_conversation, text_of
from .recordings import load_exchanges
from .replay import ReplayServer
from .script import Answer, AnyScript, Fault, Reply, ToolCall
from .scripted import ScriptedServer
from .traffic import RateLimit

NOT_READ = "{path} is neither a script (.py), nor answers (.json), nor a file of rollouts or exchanges (.jsonl)"


class BadSource(Exception):
    """The given source cannot be served. The text says why, and what to do."""


def script_of(source: str) -> AnyScript | list[Any]:
    """The script of `FILE.py`, `FILE.py:NAME`, a JSON file or a file of rollouts; of a file or folder of exchanges,
    these. Raises BadSource."""
    head, mark, name = source.rpartition(":")
    file, name = (head, name) if mark and head.endswith(".py") else (source, "script")
    path = Path(file)
    if not path.exists():
        raise BadSource(f"there is no file {file}: give a script (.py), answers (.json) or rollouts (.jsonl)")
    if path.is_dir():
        return _exchanges(path)
    if path.suffix == ".py":
        return _from_module(path, name)
    if path.suffix == ".json":
        return _from_json(path)
    if ".jsonl" in path.suffixes:
        return _exchanges(path) if _holds_exchanges(path) else _from_rollouts(path)
    raise BadSource(f"{NOT_READ.format(path=file)}.")


def echo(request: Any, *, messages: Sequence[Mapping[str, Any]]) -> str:
    """The script where no other is given: it repeats the last message."""
    return f"You said: {text_of(messages[-1])}" if messages else "You said nothing."


def _from_module(path: Path, name: str) -> AnyScript:
    spec = importlib.util.spec_from_file_location("_served_script", path)
    if spec is None or spec.loader is None:
        raise BadSource(f"{path} cannot be imported: give a file of Python.")
    module = importlib.util.module_from_spec(spec)
    # As for a program: modules beside it can be imported.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadSource(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise BadSource(f"{path} has no name {name!r}: define a function or a list with it, or give {path}:NAME")
    script: AnyScript = getattr(module, name)
    return script


def _from_json(path: Path) -> AnyScript:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise BadSource(f"{path} is not JSON: {error}") from error
    if not isinstance(found, (dict, list)) or not found:
        what = repr(found) if found else "no answers"
        raise BadSource(f"{path} holds {what}: give a list of answers, or an object of such lists by text of the task.")
    if isinstance(found, list):
        return _answers(path, "the list", found)
    return by_conversation({text: _answers(path, text, value) for text, value in found.items()})


def _answers(path: Path, place: str, value: object) -> list[Answer]:
    items = value if isinstance(value, list) else [value]
    return [_answer(f"{path}, {place}, answer {at}", item) for at, item in enumerate(items, 1)]


def _answer(place: str, item: object) -> str | Reply | Fault:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        raise BadSource(
            f"{place}: {item!r} is no answer: give a text, or an object with the fields of a Reply or a Fault."
        )
    kind: type[Reply] | type[Fault] = Reply if item.keys() <= {one.name for one in fields(Reply)} else Fault
    unknown = item.keys() - {one.name for one in fields(kind)}
    if unknown:
        raise BadSource(f"{place}: no field of a Reply or a Fault is called {', '.join(sorted(unknown))}.")
    for name, value in item.items():
        _check_type(place, kind, name, value)
    if kind is Fault:
        given = {**item, "reply": _answer(place, item.get("reply", "ok"))}
        return Fault(**given)
    calls = [_call(place, call) for call in item.get("tool_calls", ())]
    return Reply(**{**item, "tool_calls": calls})


def _check_type(place: str, kind: type[Reply] | type[Fault], name: str, value: object) -> None:
    """Refuses what the server would fail on at the first request."""
    hint = str(next(one.type for one in fields(kind) if one.name == name))
    wanted = {"bool": (bool,), "float": (int, float), "int | None": (int, type(None))}.get(hint)
    if wanted is not None and (not isinstance(value, wanted) or (bool not in wanted and isinstance(value, bool))):
        what = {"bool": "true or false", "float": "a number"}.get(hint, "a whole number")
        raise BadSource(f"{place}: {name} is {value!r}: give {what}.")


def _call(place: str, call: object) -> ToolCall:
    if isinstance(call, dict) and isinstance(call.get("name"), str):
        name, arguments = call["name"], call.get("arguments", {})
    elif isinstance(call, list) and len(call) == 2:
        name, arguments = call
    else:
        raise BadSource(f'{place}: {call!r} is no tool call: write {{"name": ..., "arguments": {{...}}}}.')
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _holds_exchanges(path: Path) -> bool:
    """Whether a file is one of `pack_exchanges`, by its first line."""
    try:
        load_exchanges(path)
    except ValueError:
        return False
    return True


def _exchanges(path: Path) -> list[Any]:
    try:
        found = load_exchanges(path)
    except (OSError, ValueError) as error:
        raise BadSource(str(error)) from error
    if not found:
        raise BadSource(f"{path} holds no exchanges: give a folder or a file that was recorded.")
    return list(found)


def _from_rollouts(path: Path) -> AnyScript:
    """The answers of recorded rollouts. Of several of one task, each run gets the next, and then the first again."""
    from rollout_trace.file.reader import read
    from rollout_trace.wire.chat_messages import to_chat

    tasks: dict[str, list[list[Answer]]] = {}
    for trajectory in read(path):
        steps = [step for step in trajectory.steps if step.choice == 0 and step.completion is not None]
        if steps:
            tasks.setdefault(_first_user(to_chat(steps[0])), []).append([_reply(step.completion) for step in steps])
    if not tasks:
        raise BadSource(f"{path} holds no answers of a model: give a file with rollouts that have steps.")
    guard, turns = threading.Lock(), {task: cycle(rollouts) for task, rollouts in tasks.items()}

    def answers(request: Any, *, messages: Sequence[Mapping[str, Any]]) -> list[Answer]:
        task = _first_user(messages)
        if task not in turns:
            known = ", ".join(repr(one) for one in list(tasks)[:3]) + (", ..." if len(tasks) > 3 else "")
            raise LookupError(f"{path} has no rollout of the task {task!r}, only {known}")
        with guard:
            return next(turns[task])

    return by_conversation(answers)


def _first_user(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((text_of(message) for message in messages if message.get("role") == "user"), "")


def _reply(completion: Any) -> Reply:
    calls = [ToolCall(call.name or "", call.arguments or "{}") for call in completion.tool_calls]
    return Reply(completion.content, calls, completion.reasoning)


def variables(url: str) -> Iterator[tuple[str, str]]:
    """Returns the environment variables that SDKs read, for a server at an address."""
    yield "OPENAI_BASE_URL", f"{url}/v1"
    yield "OPENAI_API_BASE", f"{url}/v1"
    yield "OPENAI_API_KEY", "none"
    yield "AZURE_OPENAI_ENDPOINT", url
    yield "AZURE_OPENAI_API_KEY", "none"
    yield "ANTHROPIC_BASE_URL", url
    yield "ANTHROPIC_API_KEY", "none"
    yield "GOOGLE_GEMINI_BASE_URL", url
    yield "GEMINI_API_KEY", "none"
    yield "OLLAMA_HOST", url


_DESCRIPTION = """\
Serve the answers of a script on 127.0.0.1, for agents in any language.

Without a SOURCE it repeats the last message. SOURCE is one of
  FILE.py[:NAME]  a function of the request, a list of answers, or what
                  by_conversation() and by_content() give; NAME: "script"
  FILE.json       a list of answers: texts, or objects with the fields of a
                  Reply or a Fault; or an object of such lists, by a text of
                  the task
  FILE.jsonl      rollouts: each task is answered as it was when recorded
  exchanges       a file of pack_exchanges(), or a folder: the same requests
                  get the same bytes
"""
_EPILOG = """\
It runs until it gets SIGINT (Ctrl-C) or SIGTERM. Exit code 1: the script
could not answer some request. Exit code 2: there is nothing to serve.

  %(prog)s script.py --port 8000
  eval "$(%(prog)s --print-env --port 8000)"
      prints the variables, serves nothing
"""


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m rollout_trace.testing.serve") -> int:
    """Run the command; returns its exit code. ``prog``: its name, for help and errors."""
    parser = _parser(prog)
    given = parser.parse_args(arguments)
    if given.print_env:
        if not given.port:
            parser.error("--print-env needs --port: the variables are those of a server that is started with it")
        _print_variables(f"http://127.0.0.1:{given.port}", exported=True)
        return 0
    try:
        server = _server(given)
        server.start()
    except (BadSource, ImportError, OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    return _run(server, given)


def _run(server: LoopbackServer, given: argparse.Namespace) -> int:
    # Not an Event: `set()` in a signal's handler waits for ever for the lock of a `wait()` that it interrupts.
    stop: SimpleQueue[None] = SimpleQueue()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: stop.put(None))
    if given.stdin:
        threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    print(f"serving {given.source or 'an echo'} at {server.url}", flush=True)
    _print_variables(server.url, exported=False)
    _wait_for(stop)
    server.close()
    asked, left = len(server.requests), getattr(server, "answers_left", 0)
    unused = f", {left} answer{'s' * (left > 1)} left" if left else ""
    print(f"{asked} request{'s' * (asked != 1)}{unused}", flush=True)
    for error in server.errors:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
    return 1 if server.errors else 0


def _wait_for(stop: SimpleQueue[None]) -> None:
    while True:
        try:
            # With a timeout: on some platforms a wait without one keeps signals out.
            return stop.get(timeout=0.2)
        except Empty:
            pass


def _wait_for_end(stop: SimpleQueue[None]) -> None:
    for _ in sys.stdin:
        pass
    stop.put(None)


def _print_variables(url: str, *, exported: bool) -> None:
    for name, value in variables(url):
        print(f"{'export ' if exported else '  '}{name}={shlex.quote(value)}")
    sys.stdout.flush()


def _server(given: argparse.Namespace) -> LoopbackServer:
    script: Any = echo if given.source is None else script_of(given.source)
    if isinstance(script, list) and script and isinstance(script[0], Exchange):
        return ReplayServer(script, port=given.port)
    return ScriptedServer(
        script,
        model=given.model,
        tokenizer=given.tokenizer,
        latency=given.latency,
        tokens_per_second=given.tokens_per_second,
        max_parallel=given.max_parallel,
        rate_limit=None if given.rate_limit is None else RateLimit(given.rate_limit),
        scale_out=True,
        port=given.port,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use 0 to 65535")
    return int(text)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        # The options are listed below it; above an error they would hide it.
        usage="%(prog)s [options] [SOURCE]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        # Its width is that of the text above, whatever the terminal has.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=78),
    )
    add = parser.add_argument
    add("source", nargs="?", metavar="SOURCE", help="what to serve; default: repeat the last message")
    add("--port", type=_port, default=0, metavar="N", help="port to listen on; default: any free one")
    add("--model", default="scripted", metavar="NAME", help="name of the model")
    add("--tokenizer", metavar="PATH", help="folder with tokenizer.json: its ids are used")
    add("--latency", type=float, default=0.0, metavar="SECONDS", help="wait before the first token")
    add("--tokens-per-second", type=float, metavar="N", help="speed of each answer")
    add("--max-parallel", type=int, metavar="N", help="answers at the same time; others wait")
    add("--rate-limit", type=int, metavar="N", help="requests a second; others get status 429")
    add("--print-env", action="store_true", help="print the variables for --port, and end")
    add("--stdin", action="store_true", help="also end when stdin is closed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
