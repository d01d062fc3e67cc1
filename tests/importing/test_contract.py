"""What all importers share: what they take, what they give, what they say of bad input."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.importing.imported import Imported

from .files import DATA, NAMES, files_of, is_lines, load


def flat(found: Imported) -> list[Any]:
    """What was imported, without the ids that a file's name is part of."""
    return [[(step.completion, step.usage, step.status) for step in one.steps] for one in found]


def test_every_source_has_a_function_a_line_and_files() -> None:
    functions = {name for name in importing.__all__ if name.islower() and name != "detect"}
    assert functions == set(NAMES)
    assert all(importing.SOURCES[name].importer is getattr(importing, name) for name in NAMES)
    assert all(files_of(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_can_be_written_read_and_looked_at(name: str, tmp_path: Path) -> None:
    made = list(load(name))
    path = tmp_path / "out.jsonl"
    with rt.JSONLWriter(path) as writer:
        for trajectory in made:
            writer.write(trajectory)
    back = list(rt.read(path))
    assert [one.id for one in back] == [one.id for one in made]
    for one, same in zip(made, back, strict=True):
        assert one.steps == same.steps
        assert [(run.name, run.result, run.step_id) for run in one.tool_runs] == [
            (run.name, run.result, run.step_id) for run in same.tool_runs
        ]
        assert (one.metadata or {})["imported"]["source"] == name
        one.check()
        one._repr_html_()


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_made_from_text_on_request_and_marked(name: str) -> None:
    tokenizer = _Tokenizer()
    made = 0
    for trajectory in load(name):
        kept = {step.id: step.completion_token_ids for step in trajectory.steps}
        report = trajectory.retokenize(tokenizer)
        for step in trajectory.steps:
            if step.id in report.retokenized:
                assert (step.token_source, step.logprobs) == ("retokenized", None)
                assert step.completion_token_ids is not None
                made += 1
            elif kept[step.id] is not None:
                assert step.token_source in ("engine", "logprobs")
        assert not set(report.retokenized) & set(report.kept)
        assert not any("TypeError" in problem for problem in report.failed.values())
    # Those of Agent-lightning have ids, all that have a text.
    assert made or name == "agent_lightning"


class _Tokenizer:
    """One id for each byte, and a template that renders any chat."""

    eos_token_id = None

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool = False, **_: Any) -> str:
        text = "".join(f"<{one['role']}>{one.get('content')}{one.get('tool_calls') or ''}\n" for one in messages)
        return text + "<assistant>" * add_generation_prompt

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize("name", NAMES)
def test_paths_folders_patterns_lists_and_open_files(name: str, tmp_path: Path) -> None:
    path = files_of(name)[-1]
    whole = flat(load(name, path))
    assert flat(load(name, str(path))) == whole
    assert flat(load(name, [path])) == whole
    assert flat(load(name, str(path.parent / f"{path.name[:-3]}*"))) == whole
    with path.open("rb") as file:
        opened = flat(load(name, file))
        assert opened == whole or name == "claude_code"
    assert flat(load(name, io.StringIO(path.read_text(encoding="utf-8")))) == opened
    packed = tmp_path / f"{path.name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert flat(load(name, packed)) == opened
    folder = tmp_path / "folder" / "inside"
    folder.mkdir(parents=True)
    (folder / path.name).write_bytes(path.read_bytes())
    (folder / ".hidden.jsonl").write_text("no")
    assert flat(load(name, tmp_path / "folder")) == opened


@pytest.mark.parametrize("name", NAMES)
def test_marks_line_ends_and_blank_lines(name: str, tmp_path: Path) -> None:
    """A byte order mark, CRLF, and blank lines between the records change nothing."""
    path = files_of(name)[-1]
    changed = tmp_path / path.name
    text = path.read_text(encoding="utf-8").replace("\n", "\r\n\r\n" if is_lines(path) else "\r\n")
    changed.write_bytes(b"\xef\xbb\xbf" + text.encode())
    whole = flat(load(name, io.BytesIO(path.read_bytes())))
    assert flat(load(name, changed)) == whole


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "bad",
    [b"{", b"\xff\xfe{}", b"[" * 100_000, b"[1, 2]", b'"text"', b"null", b'{"a": 1e999}', b'{"a": NaN, "b": [}'],
    ids=lambda bad: repr(bad[:12]),
)
def test_bad_bytes_are_an_error_with_their_file(name: str, bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"bad{files_of(name)[-1].suffix}"
    path.write_bytes(bad + b"\n")
    try:
        assert list(load(name, path)) == []
    except rt.FormatError as error:
        problem = str(error)
    else:
        problem = str(path)
    assert str(path) in problem
    found = load(name, path, on_error="skip")
    assert list(found) == []


@pytest.mark.parametrize("name", [name for name in NAMES if is_lines(files_of(name)[-1])])
def test_a_bad_line_is_left_out_and_the_rest_stays(name: str, tmp_path: Path) -> None:
    path = files_of(name)[-1]
    changed = tmp_path / path.name
    changed.write_bytes(b'{"cut": \n' + b"\xff\xff\n" + path.read_bytes() + b"{" * 2_000_000 + b"\n")
    with pytest.raises(rt.FormatError, match=r"line 1: expected JSON"):
        list(load(name, changed))
    found = load(name, changed, on_error="skip")
    assert flat(found) == flat(load(name, io.BytesIO(path.read_bytes())))
    assert len(found.skipped) == 3


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_are_said_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(name, tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="nothing to import"):
        load(name, tmp_path)
    with pytest.raises(ValueError, match='it can be "raise" or "skip"'):
        load(name, on_error="ignore")
    with pytest.raises(TypeError, match="expected the path of a file"):
        load(name, 3)
    with pytest.raises(FileNotFoundError, match="is empty"):
        load(name, [])


def test_files_are_known_by_their_beginning(tmp_path: Path) -> None:
    for name in NAMES:
        assert importing.detect(DATA / name) == name
        for path in files_of(name):
            assert importing.detect(path) == name
    ours = tmp_path / "ours.jsonl"
    with rt.JSONLWriter(ours) as writer:
        writer.write(rt.Trajectory())
    assert importing.detect(ours) is None
    (tmp_path / "other.json").write_text('{"type": "user", "payload": {}}')
    assert importing.detect(tmp_path / "other.json") is None
    assert importing.detect([DATA / "atif", DATA / "art"]) is None


@pytest.mark.parametrize(
    "other",
    [{"nodes": [{"id": "n", "type": "start"}], "id": "workflow"}, {"exchanges": ["NYSE", "XETRA"]}],
    ids=["a graph", "stock exchanges"],
)
def test_files_of_other_programs_are_of_no_source(other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))
    assert importing.detect(path) is None


def test_the_same_ids_get_numbers() -> None:
    found = load("atif", [DATA / "atif", DATA / "atif"])
    assert [one.id for one in found] == ["main-1", "sub-1", "main-1-2", "sub-1-2"]
    assert found.report.noted["ids that two trajectories of the source share, given a number"] == 2


def test_what_was_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    report = importing.ImportReport()
    list(load("inspect", report=report))
    assert report.trajectories == 3
    assert caplog.messages == [
        "importing.inspect left out: scores that are no numbers: 1. The counts are in `.report` of the result."
    ]


def test_no_importer_needs_a_package_of_its_source() -> None:
    program = """
import sys
import rollout_trace as rt
from rollout_trace import importing
for name in importing.__all__:
    getattr(importing, name)
assert set(importing.__all__) <= set(dir(importing))
wanted = ("verifiers", "inspect_ai", "art", "agentlightning", "harbor", "atif", "opentelemetry", "pydantic", "numpy")
print([name for name in wanted if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_long_conversations_take_linear_memory(tmp_path: Path) -> None:
    """Each prompt of a session has all messages before it: they are stored once."""
    lines: list[dict[str, Any]] = []
    parent = None
    for at in range(1500):
        for kind in ("user", "assistant"):
            message: dict[str, Any] = {"role": kind, "content": [{"type": "text", "text": f"{kind} {at}"}]}
            if kind == "assistant":
                message |= {"id": f"m{at}", "model": "claude", "usage": {"input_tokens": at, "output_tokens": 1}}
            uuid = f"{kind}{at}"
            lines.append({"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message})
            parent = uuid
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,) = importing.claude_code(path)
    assert len(one.steps) == 1500
    assert len(one.steps[-1].messages or ()) == 2999
    # As text: a table of 3,000 messages, not 1,500 prompts.
    assert len(one.to_json()) < 1_500_000
