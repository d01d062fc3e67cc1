"""What Kimi Code does to a conversation: taking turns back, emptying it, compacting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.importing.steps import Thread

if TYPE_CHECKING:
    from rollout_trace.importing.fields import Fields
    from rollout_trace.importing.imported import Job

_SLASH = frozenset({"skill_activation", "plugin_command"})


class History:
    """Where each message of a conversation is from, and what the session's lines make of them.

    Messages are told apart by what they are, not by their texts: two may be equal.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._facts: dict[int, tuple[dict[str, Any], str | None, dict[str, Any]]] = {}
        """Of each message with an origin: itself, its id and the origin."""

    def note(self, message: dict[str, Any], name: str | None, origin: dict[str, Any]) -> None:
        """Remembers where a message is from."""
        self._facts[id(message)] = message, name, origin

    def undone(self, thread: Thread, turns: int) -> Thread:
        """The conversation without its last turns of the user; as it was where it has fewer."""
        items, cut, left = thread.items, len(thread.items), turns
        for at in range(len(items) - 1, -1, -1):
            kind = self._origin(items[at]).get("kind")
            if kind == "compaction_summary":
                break
            if left and self._is_of_user(items[at]):
                left, cut = left - 1, at
                while cut and self._is_added_to(items[cut - 1], items[at]):
                    cut -= 1
        return thread.fork(cut) if turns > 0 and not left else thread

    def cleared(self, thread: Thread) -> Thread:
        """The conversation without its messages: the system prompt stays."""
        return Thread(_system(thread))

    def without_swarm(self, thread: Thread) -> Thread:
        """The conversation without the reminder of a mode, where nothing came behind it."""
        last = self._origin(thread.items[-1]) if thread.items else {}
        is_reminder = last.get("kind") == "injection" and last.get("variant") == "swarm_mode"
        return thread.fork(len(thread.items) - 1) if is_reminder else thread

    def compacted(self, thread: Thread, record: Fields) -> Thread:
        """The conversation with a summary: of older sessions in front of the rest, else behind the user's messages."""
        first = _system(thread)
        rest, kept = thread.items[len(first) :], record.count("keptUserMessageCount")
        summary = self._summary(record)
        if record.get("legacyTail") is True or kept is None:
            count = record.count("compactedCount")
            count = record.count("count") if count is None else count
            return Thread([*first, summary, *rest[len(rest) if count is None else count :]])
        users = [one for one in rest if self._is_of_user(one)]
        head = record.count("keptHeadUserMessageCount")
        self._job.report.note("compactions that shortened messages of the user, which are whole here", head is not None)
        tail = kept - (head or 0)
        return Thread([*first, *users[: head or 0], *users[max(0, len(users) - tail) :], summary])

    def _summary(self, record: Fields) -> dict[str, Any]:
        given = record.get("contextSummary") or record.get("summary")
        content = given.get("content") if isinstance(given, dict) else given
        message = {"role": "user", "content": content}
        self.note(message, None, {"kind": "compaction_summary"})
        return message

    def _origin(self, message: Any) -> dict[str, Any]:
        found = self._facts.get(id(message))
        return {} if found is None else found[2]

    def _is_of_user(self, message: Any) -> bool:
        origin = self._origin(message)
        kind = origin.get("kind")
        is_slash = kind in _SLASH and origin.get("trigger") == "user-slash"
        return message.get("role") == "user" and (kind in (None, "user") or is_slash)

    def _is_added_to(self, message: Any, prompt: Any) -> bool:
        """Whether Kimi Code put a message before a prompt, for it."""
        origin, name = self._origin(message), self._facts.get(id(prompt), (None, None, {}))[1]
        return origin.get("kind") == "injection" and name is not None and origin.get("ownerPromptId") == name


def _system(thread: Thread) -> list[Any]:
    return [one for one in thread.items[:1] if one.get("role") == "system"]
