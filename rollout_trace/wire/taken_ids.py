"""The ids of a prompt, taken out of an answer's text before its decoder reads the rest.

Engines send the ids of the whole prompt with every answer: most of the bytes of a long agent, and most of its ids were
in the answer before. Here they are compared as text with those that the trajectory has, and only the new ones are read.
In their place stands a list of one number, which no engine sends: decoders read it as any list of ids, wherever it
stands, and ask ``RequestFacts.ids`` what it is. An answer whose lists are not all asked for is decoded as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.wire.places import requests_ids

if TYPE_CHECKING:
    from rollout_trace.data.tokens import PromptIds, TokenStore

_FIRST: Final = -(2**62)
"""The number that stands for the first list of an answer; that of the next is one less."""
_NAME: Final = b'"prompt_token_ids":['
_NAMES: Final = {"openai.responses": b'"tokens":['}
"""The field of a prompt's ids where it has another name. No text has such bytes: in a text quotes are escaped."""
_IN_SGLEXT: Final = b'"input_ids":['
_ALWAYS: Final = frozenset({"vllm.generate", "sglang.generate", "vllm.llm", "tinker.sample", "transformers.generate"})
"""Protocols whose answers have ids unasked."""


class TakenIds:
    """The lists that were taken out of one answer."""

    __slots__ = ("_lists", "_unused")

    def __init__(self, lists: dict[int, PromptIds]) -> None:
        self._lists = lists
        self._unused = set(lists)

    def get(self, ids: Any) -> Any:
        """The ids for which a list stands, as ``PromptIds``; any other value itself."""
        if type(ids) is not list or len(ids) != 1 or (found := self._lists.get(ids[0])) is None:
            return ids
        self._unused.discard(ids[0])
        return found

    @property
    def are_used(self) -> bool:
        """Whether a decoder has asked for each list: what it leaves out, or keeps elsewhere, has to be as it came."""
        return not self._unused


def take(
    answer: bytes, protocol: str, sampling: Mapping[str, Any] | None, store: TokenStore
) -> tuple[bytes, TakenIds | None]:
    """Takes the long lists of its prompts' ids out of an answer. The answer itself, and None, where it has none.

    Args:
        answer: the whole of it.
        protocol: of the call.
        sampling: the parameters of the request.
        store: of the trajectory.
    """
    asked = sampling or {}
    if protocol not in _ALWAYS and not requests_ids(asked):
        return answer, None
    name = _IN_SGLEXT if asked.get("return_input_ids_in_sglext") else _NAMES.get(protocol, _NAME)
    # One list: to look for more behind it would take a twentieth of the decoding.
    is_one = protocol == "openai.chat" and asked.get("n", 1) == 1
    at = answer.find(name)
    lists: dict[int, PromptIds] = {}
    kept, done = [], 0
    while at >= 0:
        begin = at + len(name)
        end = answer.find(b"]", begin)
        ids = store.read(answer, begin, end)
        if ids is not None:
            number = _FIRST - len(lists)
            lists[number] = ids
            kept += [answer[done:begin], b"%d" % number]
            done = end
        at = -1 if is_one else answer.find(name, max(begin, end))
    return (answer, None) if not kept else (b"".join([*kept, answer[done:]]), TakenIds(lists))
