"""The texts of tokens, from a tokenizer on this machine. Nothing is ever downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollout_trace.view.token_pieces import ByteLevel, pieces_of

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_INSTALL = "Install it with: pip install tokenizers (in a checkout: pip install '.[tokenizers]')"


class Tokenizer:
    """The texts of tokens by a tokenizer's own decoding."""

    def __init__(self, decode: Callable[[list[int]], str], byte_level: ByteLevel | None = None, name: str = "") -> None:
        """``byte_level``: what each token stands for, where all are bytes. ``name``: to be shown."""
        self._decode = decode
        self._byte_level = byte_level
        self.name = name

    def texts(self, ids: Sequence[int]) -> list[str]:
        """See ``view.tokens.TokenTexts``. An id that the tokenizer does not have has an empty text."""
        numbers = [int(one) for one in ids]
        whole = self._decode(numbers)
        if self._byte_level is not None:
            found = self._byte_level.texts(numbers)
            if "".join(found) == whole:
                return found
        return pieces_of(numbers, whole, self._decode)


def load_tokenizer(path_or_name: str | os.PathLike[str]) -> Tokenizer:
    """A tokenizer from a folder, from a ``tokenizer.json``, or by the name of a model in the Hugging Face hub's cache.

    Raises ValueError, which says where it was looked for, or ImportError: the package that reads it is not installed.
    """
    given = os.fspath(path_or_name)
    path = Path(given).expanduser()
    if path.is_file():
        return _from_file(path, given)
    if not path.is_dir():
        path = _cached(given)
    if (path / "tokenizer.json").is_file():
        return _from_file(path / "tokenizer.json", given)
    return _from_transformers(path, given)


def _from_file(path: Path, name: str) -> Tokenizer:
    if find_spec("tokenizers") is None:
        raise ImportError(f"{path} is read with the package tokenizers, which is not installed. {_INSTALL}")
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises bare Exceptions.
        raise ValueError(
            f"{path} cannot be read as the tokenizer.json of a tokenizer: {error}. Give the folder of a model, or its "
            "tokenizer.json."
        ) from None
    return _from_backend(found, name)


def _from_backend(found: Any, name: str) -> Tokenizer:
    def decode(ids: list[int]) -> str:
        text: str = found.decode(ids, skip_special_tokens=False)
        return text

    return Tokenizer(decode, ByteLevel.of(found), name)


def _from_transformers(folder: Path, name: str) -> Tokenizer:
    if find_spec("transformers") is None:
        raise ValueError(
            f"{folder} has no tokenizer.json. Other tokenizers are read with the package transformers, which is not "
            "installed: give a folder with a tokenizer.json, or install transformers."
        )
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise ValueError(f"{folder} has no tokenizer that transformers can read: {error}") from None
    backend = getattr(found, "backend_tokenizer", None)
    if backend is not None:
        return _from_backend(backend, name)

    def decode(ids: list[int]) -> str:
        text: str = found.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    return Tokenizer(decode, None, name)


def _cached(name: str) -> Path:
    """The folder of a model in the hub's cache. Raises ValueError: it is not there."""
    cache = _cache_folder()
    model = cache / f"models--{name.replace('/', '--')}"
    snapshots = model / "snapshots"
    if _NAME.fullmatch(name) and snapshots.is_dir():
        main = model / "refs" / "main"
        current = snapshots / main.read_text(encoding="utf-8").strip() if main.is_file() else None
        folders = sorted(snapshots.iterdir(), key=lambda folder: (folder == current, folder.stat().st_mtime))
        with_tokenizer = [one for one in folders if any(one.glob("tokenizer*"))]
        if with_tokenizer:
            return with_tokenizer[-1]
        raise ValueError(
            f"the cache of models ({cache}) has {name!r} without its tokenizer, and nothing is downloaded. Fetch it "
            f"with: hf download {name} --include 'tokenizer*'"
        )
    raise ValueError(
        f"there is no tokenizer {name!r}: no folder or file has this name, and no model in the cache of models "
        f"({cache}). Nothing is downloaded. Give the folder of the model, or its tokenizer.json."
    )


def _cache_folder() -> Path:
    """Where the Hugging Face hub keeps models, by its environment variables."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"
