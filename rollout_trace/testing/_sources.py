"""Reads what `python -m rollout_trace.testing.serve` serves: scripts, answers in JSON, rollouts, exchanges."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .conversations import by_conversation
from .recordings import load_exchanges
from .rules import text_of
from .script import Answer, AnyScript, Fault, Reply, ToolCall

NOT_READ = "{path} is neither a script (.py), nor answers (.json), nor a file of rollouts or exchanges (.jsonl)"


class BadSource(Exception):
    """What was given cannot be served; the text says why, and what to do."""


def script_of(source: str) -> AnyScript | list[Any]:
    """The script of `FILE.py`, `FILE.py:NAME`, a JSON file or a file of rollouts; of a file or folder of exchanges,
    these. Raises BadSource."""
    file, name = _split(source)
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


def _split(source: str) -> tuple[str, str]:
    head, mark, name = source.rpartition(":")
    return (head, name) if mark and head.endswith(".py") else (source, "script")


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
    if isinstance(found, (dict, list)) and not found:
        raise BadSource(
            f"{path} holds no answers: give a list of them, or an object of such lists by text of the task."
        )
    if isinstance(found, dict):
        return by_conversation({text: _answers(path, text, value) for text, value in found.items()})
    if isinstance(found, list):
        return _answers(path, "the list", found)
    raise BadSource(f"{path} holds {found!r}: give a list of answers, or an object of such lists by text of the task.")


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

    tasks: dict[str, list[list[Answer]]] = {}
    for trajectory in read(path):
        steps = [step for step in trajectory.steps if step.choice == 0 and step.completion is not None]
        if steps:
            tasks.setdefault(_task_of(steps[0]), []).append([_reply(step.completion) for step in steps])
    if not tasks:
        raise BadSource(f"{path} holds no answers of a model: give a file with rollouts that have steps.")
    turns = {task: _turns(rollouts) for task, rollouts in tasks.items()}

    def answers(request: Any, *, messages: Sequence[Mapping[str, Any]]) -> list[Answer]:
        task = _first_user(messages)
        if task not in turns:
            known = ", ".join(repr(one) for one in list(tasks)[:3]) + (", ..." if len(tasks) > 3 else "")
            raise LookupError(f"{path} has no rollout of the task {task!r}, only {known}")
        return turns[task]()

    return by_conversation(answers)


def _turns(rollouts: list[list[Answer]]) -> Callable[[], list[Answer]]:
    guard, count = threading.Lock(), iter(range(sys.maxsize))

    def take() -> list[Answer]:
        with guard:
            return rollouts[next(count) % len(rollouts)]

    return take


def _task_of(step: Any) -> str:
    from rollout_trace.wire.chat_messages import to_chat

    return _first_user(to_chat(step))


def _first_user(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((text_of(message) for message in messages if message.get("role") == "user"), "")


def _reply(completion: Any) -> Reply:
    calls = [ToolCall(call.name or "", call.arguments or "{}") for call in completion.tool_calls]
    return Reply(completion.content, calls, completion.reasoning)


def variables(url: str) -> Iterator[tuple[str, str]]:
    """What SDKs read from the environment, for a server at an address."""
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
