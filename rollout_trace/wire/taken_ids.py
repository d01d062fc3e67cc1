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
    """The lists of one answer."""

    __slots__ = ("_lists", "_unused")

    def __init__(self) -> None:
        self._lists: dict[int, PromptIds] = {}
        self._unused: set[int] = set()

    def take(self, answer: bytes, protocol: str, sampling: Mapping[str, Any] | None, store: TokenStore) -> bytes:
        """The answer without the long lists of its prompts' ids; the same object where it has none.

        Args:
            sampling: the parameters of the request.
            store: of the trajectory.
        """
        asked = sampling or {}
        if protocol not in _ALWAYS and not requests_ids(asked):
            return answer
        name = _IN_SGLEXT if asked.get("return_input_ids_in_sglext") else _NAMES.get(protocol, _NAME)
        kept, done = [], 0
        at = answer.find(name)
        while at >= 0:
            begin = at + len(name)
            end = answer.find(b"]", begin)
            ids = store.read(answer, begin, end)
            if ids is not None:
                number = _FIRST - len(self._lists)
                self._lists[number] = ids
                kept += [answer[done:begin], str(number).encode()]
                done = end
            at = answer.find(name, max(begin, end))
        self._unused.update(self._lists)
        return answer if not kept else b"".join([*kept, answer[done:]])

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
