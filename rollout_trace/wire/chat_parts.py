"""Content parts of every provider as parts of OpenAI's chat messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_CHAT = frozenset({"text", "image_url", "input_audio", "file", "refusal"})


def content_of(value: Any, report: ExportReport | None = None) -> str | list[dict[str, Any]] | None:
    """The content of a message as a text or a list of chat parts. A single text part becomes its text.

    Parts without a place in a chat message (a search result, a file stored by the provider, ...) are left out and
    counted in the report.
    """
    if value is None or isinstance(value, str):
        return value
    parts = [part for item in (value if isinstance(value, list) else [value]) for part in _parts(item, report)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def as_text(content: Any) -> Any:
    """The content as one text where all its parts are text, joined with newlines; else unchanged.

    vLLM and llama-server join parts in this way for chat templates that expect texts.
    """
    texts = texts_of(content)
    return content if texts is None else "\n".join(texts)


def texts_of(content: Any) -> list[str] | None:
    """The texts of a list of text parts; None for other contents, and where a part is not text or there is none."""
    if not isinstance(content, list) or not content:
        return None
    texts = [item if isinstance(item, str) else _text_of_part(item) for item in content]
    return None if None in texts else texts  # type: ignore[return-value]


def _text_of_part(item: Any) -> str | None:
    text = item.get("text") if isinstance(item, dict) and item.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _parts(item: Any, report: ExportReport | None) -> list[dict[str, Any]]:
    if isinstance(item, str):
        return [_text(item)]
    kind = str(item.get("type")) if isinstance(item, dict) else type(item).__name__
    convert = _CONVERTERS.get(kind)
    parts = convert(item) if convert is not None else [item] if kind in _CHAT else None
    if parts is None:
        if report is not None:
            report.drop(f"content parts without a place in a chat message: {kind}")
        return []
    # A document can have parts of Anthropic's shape inside, which are converted in turn.
    return [
        part for inner in parts for part in (_parts(inner, report) if str(inner.get("type")) not in _CHAT else [inner])
    ]


def _text(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text if isinstance(text, str) else ""}


def _responses_image(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    url, detail = item.get("image_url"), item.get("detail")
    if not isinstance(url, str):
        return None
    return [{"type": "image_url", "image_url": {"url": url} if detail is None else {"url": url, "detail": detail}}]


def _responses_file(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    fields = {name: item[name] for name in ("file_data", "file_id", "filename") if item.get(name) is not None}
    return [{"type": "file", "file": fields}] if "file_data" in fields or "file_id" in fields else None


def _anthropic_image(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    url = _url(item.get("source"))
    return None if url is None else [{"type": "image_url", "image_url": {"url": url}}]


def _anthropic_document(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    source, title = item.get("source"), item.get("title")
    if not isinstance(source, dict):
        return None
    if source.get("type") == "text":
        return [_text(source.get("data"))]
    if source.get("type") == "content":
        inner = source.get("content")
        return [_text(inner)] if isinstance(inner, str) else [part for part in inner or () if isinstance(part, dict)]
    data = _url(source) if source.get("type") == "base64" else None
    if data is None:
        return None
    return [{"type": "file", "file": {"file_data": data} if title is None else {"file_data": data, "filename": title}}]


def _url(source: Any) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    url = source.get("url")
    return url if isinstance(url, str) else None


_CONVERTERS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]] | None]] = {
    # Rebuilt, as a text may have a cache mark, citations or annotations beside it, which no model reads.
    "text": lambda item: [_text(item.get("text"))],
    "input_text": lambda item: [_text(item.get("text"))],
    "output_text": lambda item: [_text(item.get("text"))],
    "input_image": _responses_image,
    "input_file": _responses_file,
    "image": _anthropic_image,
    "document": _anthropic_document,
}
