"""What differs between two requests, in parts that can be named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from ._normal_form import Message, NormalForm, Tool, digest_of


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()
"""Stands for the value of a field that is not there."""


class Detail(NamedTuple):
    """One value that differs."""

    path: str
    """Inside its part: ``content.0.text``; empty for the whole part."""
    recorded: Any
    now: Any


class Difference(NamedTuple):
    """One part of a request that differs."""

    part: Literal["messages", "tools", "model", "setting", "protocol", "target", "body"]
    name: str
    """``message 4 (tool)``, the name of a tool or a setting."""
    kind: Literal["changed", "added", "removed", "moved"]
    details: tuple[Detail, ...] = ()
    """With ``added`` and ``removed``: the whole value. With ``moved``: the two places."""


def differences(recorded: NormalForm, now: NormalForm) -> list[Difference]:
    """What differs between two requests, the important first: protocol, messages, tools, model, settings."""
    if recorded.protocol != now.protocol:
        return [_changed("protocol", "protocol", recorded.protocol, now.protocol)]
    found = [] if recorded.target == now.target else [_changed("target", "path", recorded.target, now.target)]
    found += _of_messages(recorded.messages, now.messages)
    found += _of_tools(recorded.tools, now.tools)
    if recorded.model != now.model:
        found.append(_changed("model", "model", recorded.model, now.model))
    for name in {**recorded.settings, **now.settings}:
        details = tuple(details_of(recorded.settings.get(name, MISSING), now.settings.get(name, MISSING)))
        if details:
            found.append(Difference("setting", name, "changed", details))
    if found:
        return found
    # No object; or the parts are equal, and grouped in another way.
    details = tuple(details_of(recorded.body, now.body))
    return [Difference("body", "body", "changed", details)] if details else []


def _changed(part: Any, name: str, recorded: Any, now: Any) -> Difference:
    return Difference(part, name, "changed", (Detail("", recorded, now),))


def _title(message: Message) -> str:
    return f"{message.name} ({message.role})" if message.name.startswith("message") else message.name


def _of_messages(recorded: Sequence[Message], now: Sequence[Message]) -> list[Difference]:
    removed: list[Message] = []
    added: list[Message] = []
    found: list[tuple[int, Difference]] = []
    matcher = SequenceMatcher(None, [one.digest for one in recorded], [one.digest for one in now], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        for before, after in _paired(recorded[i1:i2], now[j1:j2]):
            if before is not None and after is not None:
                at = now.index(after)
                found.append((at, Difference("messages", _title(after), "changed", _message_details(before, after))))
            elif before is not None:
                removed.append(before)
            elif after is not None:
                added.append(after)
    for after in list(added):
        before = next((one for one in removed if one.digest == after.digest), None)
        if before is not None:
            removed.remove(before)
            added.remove(after)
            moved = Difference("messages", _title(after), "moved", (Detail("", before.name, after.name),))
            found.append((now.index(after), moved))
    found += [(now.index(one), _whole(one, "added")) for one in added]
    found += [(recorded.index(one), _whole(one, "removed")) for one in removed]
    return [difference for _, difference in sorted(found, key=lambda one: one[0])]


def _whole(message: Message, kind: Literal["added", "removed"]) -> Difference:
    value = message.value
    values = (MISSING, value) if kind == "added" else (value, MISSING)
    return Difference("messages", _title(message), kind, (Detail("", *values),))


def _message_details(before: Message, after: Message) -> tuple[Detail, ...]:
    return tuple(details_of(before.value, after.value))


def _paired(recorded: Sequence[Message], now: Sequence[Message]) -> Iterator[tuple[Message | None, Message | None]]:
    """Messages that stand in each other's place: of equal roles, in their order; the others alone."""
    matcher = SequenceMatcher(None, [one.role for one in recorded], [one.role for one in now], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(recorded[i1:i2], now[j1:j2], strict=True)
        else:
            yield from ((one, None) for one in recorded[i1:i2])
            yield from ((None, one) for one in now[j1:j2])


def _of_tools(recorded: Sequence[Tool], now: Sequence[Tool]) -> list[Difference]:
    before, after = _by_name(recorded), _by_name(now)
    found = []
    for name in {**before, **after}:
        if name not in after:
            found.append(Difference("tools", name, "removed", (Detail("", before[name].value, MISSING),)))
        elif name not in before:
            found.append(Difference("tools", name, "added", (Detail("", MISSING, after[name].value),)))
        elif before[name].digest != after[name].digest:
            details = tuple(details_of(before[name].value, after[name].value))
            found.append(Difference("tools", name, "changed", details))
    if not found and list(before) != list(after):
        order = Detail("", ", ".join(before), ", ".join(after))
        found.append(Difference("tools", "order", "moved", (order,)))
    return found


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in tools:
        name, number = tool.name, 2
        while name in found:
            name, number = f"{tool.name} ({number})", number + 1
        found[name] = tool
    return found


def details_of(recorded: Any, now: Any, path: str = "") -> Iterator[Detail]:
    """The values that differ between two JSON values, with their paths."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in {**recorded, **now}:
            yield from details_of(recorded.get(key, MISSING), now.get(key, MISSING), _joined(path, key))
    elif isinstance(recorded, list) and isinstance(now, list) and not _is_flat(recorded, now):
        yield from _list_details(recorded, now, path)
    elif not _equal(recorded, now):
        yield Detail(path, recorded, now)


def _is_flat(*lists: list[Any]) -> bool:
    """Whether lists hold texts and numbers alone, token ids for one: they are compared as a whole."""
    return not any(isinstance(item, (dict, list)) for one in lists for item in one)


def _list_details(recorded: list[Any], now: list[Any], path: str) -> Iterator[Detail]:
    digests = [digest_of(item) for item in recorded], [digest_of(item) for item in now]
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *digests, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        shared = min(i2 - i1, j2 - j1)
        for at in range(shared):
            yield from details_of(recorded[i1 + at], now[j1 + at], _joined(path, j1 + at))
        yield from (Detail(_joined(path, at), recorded[at], MISSING) for at in range(i1 + shared, i2))
        yield from (Detail(_joined(path, at), MISSING, now[at]) for at in range(j1 + shared, j2))


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _equal(first: Any, second: Any) -> bool:
    if first is MISSING or second is MISSING:
        return first is second
    return digest_of(first) == digest_of(second)
