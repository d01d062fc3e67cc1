"""Inline media: moved to a folder beside the file, and put back to the byte; whatever else a line holds stays."""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import pickle
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import JSONLWriter, read
from rollout_trace.data.model import Completion, Step, ToolCall, ToolRun
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.encode import encode
from rollout_trace.file.media import MediaFolder, folder_of, restore
from rollout_trace.file.records import schema
from rollout_trace.file.validate import Problem, validate
from tests.strategies import PROFILE, texts, trajectories

PIXELS = bytes(range(256)) * 4
"""1024 bytes, which are 1368 characters of base64."""
PIXELS_SHA256 = "785b0751fc2c53dc14a4ce3d800e69ef9ce1009eb327ccf458afe09c242c26c9"
SOUND = b"RIFF" + bytes(2000)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def asking(*content: Any, **facts: Any) -> Trajectory:
    """A trajectory of one step with one message."""
    return Trajectory(
        id="t", steps=[Step(id="c.0", call_id="c", messages=[{"role": "user", "content": list(content)}], **facts)]
    )


def written(trajectory: Trajectory, path: Path, **options: Any) -> dict[str, Any]:
    """Writes to a file with a media folder, checks that reading gives the same, and gives the line."""
    with JSONLWriter(path, media="folder", **options) as out:
        out.write(trajectory)
    assert list(read(path))[-1] == trajectory
    line: dict[str, Any] = json.loads(path.read_bytes().splitlines()[-1])
    jsonschema.Draft202012Validator(schema()).validate(line)
    return line


def stored(path: Path) -> dict[str, bytes]:
    folder = Path(f"{path}.media")
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


IMAGE_URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(PIXELS)}", "detail": "low"}}


def test_a_data_url_becomes_a_reference(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    line = written(asking({"type": "text", "text": "What is this?"}, IMAGE_URL), path)
    reference = f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as=url;type=image/png)"
    assert line["media"] == {"mark": "rollout-trace-media"}
    assert line["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": reference, "detail": "low"},
    }
    assert stored(path) == {PIXELS_SHA256: PIXELS}


def test_a_line_of_this_version_stays_readable(tmp_path: Path) -> None:
    """Written out by hand, as version 1 of the format has it."""
    reference = f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as={{}})"
    line = {
        "schema": "rollout-trace/1",
        "id": "t",
        "media": {"mark": "rollout-trace-media"},
        "messages": [reference.format("url;type=image/png"), reference.format("base64"), "rollout-trace-media"],
        "steps": [{"id": "c.0", "messages": [[0, 3]]}],
    }
    folder = tmp_path / "rollouts.jsonl.media"
    folder.mkdir()
    (folder / PIXELS_SHA256).write_bytes(PIXELS)
    text = json.dumps(line)
    for form in (text, text.replace("/", "\\/")):  # Other programs escape the slash.
        (tmp_path / "rollouts.jsonl").write_text(form)
        (trajectory,) = read(tmp_path / "rollouts.jsonl")
        assert trajectory.steps[0].messages == [
            f"data:image/png;base64,{b64(PIXELS)}",
            b64(PIXELS),
            "rollout-trace-media",
        ]


BARE: dict[str, tuple[Any, str]] = {
    "openai-audio": (
        {"type": "input_audio", "input_audio": {"data": b64(SOUND), "format": "wav"}},
        "as=base64;type=audio/wav",
    ),
    "openai-file": (
        {"type": "file", "file": {"filename": "a.pdf", "file_data": b64(SOUND)}},
        "as=base64",
    ),
    "openai-file-url": (
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{b64(SOUND)}"}},
        "as=url;type=application/pdf",
    ),
    "anthropic": (
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": b64(SOUND)}},
        "as=base64;type=image/jpeg",
    ),
    "anthropic-any-order": (
        {"source": {"data": b64(SOUND), "note": 'a "}" {', "media_type": "image/jpeg", "type": "base64"}},
        "as=base64;type=image/jpeg",
    ),
    "mcp": ({"type": "image", "data": b64(SOUND), "mimeType": "image/webp"}, "as=base64;type=image/webp"),
    "langchain": ({"type": "image", "base64": b64(SOUND), "mime_type": "image/gif"}, "as=base64;type=image/gif"),
    "parameters": ({"url": f"data:audio/wav;codecs=1;base64,{b64(SOUND)}"}, "as=url;type=audio/wav;codecs=1"),
    "no-type": ({"url": f"data:;base64,{b64(SOUND)}"}, "as=url;type="),
    "odd-type": ({"data": b64(SOUND), "media_type": "an image)"}, "as=base64"),
    "in-a-text": ({"text": f"![plot](data:image/png;base64,{b64(SOUND)})\n"}, "as=url;type=image/png"),
}


@pytest.mark.parametrize("case", BARE)
def test_the_forms_of_providers_are_moved(case: str, tmp_path: Path) -> None:
    part, ending = BARE[case]
    line = written(asking(part), tmp_path / "rollouts.jsonl")
    assert f"(sha256={name(SOUND)};bytes=2004;{ending})" in json.dumps(line["messages"])
    assert b64(SOUND) not in json.dumps(line)
    assert stored(tmp_path / "rollouts.jsonl") == {name(SOUND): SOUND}


def test_completions_and_tool_results_are_looked_through_too(tmp_path: Path) -> None:
    others = [bytes([number]) * 1500 for number in range(5)]
    drawn, spoken, seen, shown, asked = others
    completion = Completion(
        content=[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(drawn)}"}}],
        tool_calls=(ToolCall(id="1", arguments=json.dumps({"image": f"data:image/png;base64,{b64(asked)}"})),),
        extra={"audio": {"id": "a", "data": b64(spoken), "expires_at": 1, "transcript": "Hello."}},
    )
    trajectory = asking("hello", completion=completion)
    trajectory.tool_runs = [
        ToolRun(name="look", result={"type": "image", "data": b64(seen), "mimeType": "image/png"}),
        ToolRun(name="show", result={"type": "image_generation_call", "result": b64(shown), "output_format": "png"}),
    ]
    line = written(trajectory, tmp_path / "rollouts.jsonl")
    assert stored(tmp_path / "rollouts.jsonl") == {name(data): data for data in others}
    assert line["tool_runs"][1]["result"]["result"].endswith(";as=base64;type=image/png)")


KEPT_INLINE: dict[str, Any] = {
    "exactly-1-KiB": {"url": f"data:image/png;base64,{b64(bytes(768))}"},
    "no-media": {"data": b64(SOUND), "note": "of which nothing says that it is one"},
    "redacted-thinking": {"type": "redacted_thinking", "data": b64(SOUND)},
    "letters": {"text": "ACGT" * 1000},
    "cut": {"url": f"data:image/png;base64,{b64(SOUND)[:-1]}"},
    "padding-bits": {"url": f"data:image/png;base64,{b64(bytes(2000))[:-2]}B="},
    "too-much-padding": {"url": f"data:image/png;base64,{b64(SOUND)}=="},
    "wrapped": {"url": "data:image/png;base64," + base64.encodebytes(SOUND).decode()},
    "url-safe": {"url": "data:image/png;base64," + base64.urlsafe_b64encode(b"\xfb\xff" * 900).decode()},
    "percent": {"url": f"data:image/png;base64,{b64(bytes(1500))}%2Bab"},
    "escaped-slash": {"text": json.dumps({"url": f"data:image/png;base64,{b64(bytes(1500))}/AAA"}).replace("/", "\\/")},
    "not-base64": {"url": "data:image/svg+xml,<svg>" + "a" * 2000},
    "mime-but-text": {"data": "no base64 " * 200, "mimeType": "text/plain"},
}


@pytest.mark.parametrize("case", KEPT_INLINE)
def test_what_is_short_or_would_come_back_otherwise_stays(case: str, tmp_path: Path) -> None:
    trajectory = asking(KEPT_INLINE[case])
    written(trajectory, tmp_path / "rollouts.jsonl")
    assert (tmp_path / "rollouts.jsonl").read_bytes() == encode(trajectory)
    assert stored(tmp_path / "rollouts.jsonl") == {}


def test_one_byte_more_than_1_KiB_is_moved(tmp_path: Path) -> None:
    written(asking({"url": f"data:image/png;base64,{b64(bytes(769))}"}), tmp_path / "rollouts.jsonl")
    assert stored(tmp_path / "rollouts.jsonl") == {name(bytes(769)): bytes(769)}


def test_by_default_media_stay_in_the_line(tmp_path: Path) -> None:
    with JSONLWriter(tmp_path / "rollouts.jsonl") as out:
        out.write(asking(IMAGE_URL))
    assert (tmp_path / "rollouts.jsonl").read_bytes() == encode(asking(IMAGE_URL))
    assert [file.name for file in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_what_looks_like_a_reference_is_not_one(tmp_path: Path) -> None:
    fake = f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as=url;type=image/png)"
    nested = f"data:a/b;sha256={PIXELS_SHA256};bytes=1;as=url;base64,{b64(PIXELS)}"
    trajectory = asking(fake, IMAGE_URL, {"media": {"mark": "rollout-trace-media2"}}, nested, fake.replace("(", "2("))
    line = written(trajectory, tmp_path / "rollouts.jsonl")
    assert line["media"] == {"mark": "rollout-trace-media3"}
    (kept,) = read(tmp_path / "rollouts.jsonl", media="keep")
    assert kept.steps[0].messages[0]["content"][0] == fake  # type: ignore[index]


images = st.sampled_from([PIXELS, SOUND, bytes(769), bytes(768), b"x"])
prefixes = st.sampled_from(["data:image/png;base64,", "data:;base64,", "data:a/b;c=d;base64,", "", "see data:"])
endings = st.sampled_from(["", "", "=", "/", " text", "\\/A", ")", "%2B", "\ud83d"])
media_texts = st.builds(lambda prefix, data, end: prefix + b64(data) + end, prefixes, images, endings)
lookalikes = st.sampled_from(
    [
        "rollout-trace-media",
        f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as=base64)",
        f"rollout-trace-media2(sha256={PIXELS_SHA256};bytes=1024;as=url;type=a/b)",
    ]
)
keys = st.sampled_from(["data", "file_data", "media_type", "format", "audio", "media", "mark", "url"]) | texts
parts = st.recursive(
    media_texts | lookalikes | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=6,
)


@PROFILE
@given(trajectories(live=False), st.lists(parts, max_size=4), parts)
def test_putting_back_undoes_moving_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, trajectory: Trajectory, messages: list[Any], result: Any
) -> None:
    trajectory.steps.append(Step(id="m.0", call_id="m", messages=messages))
    trajectory.tool_runs.append(ToolRun(result=result))
    folder = tmp_path_factory.getbasetemp() / "any.media"
    line = encode(trajectory)
    moved = MediaFolder(folder).extract(line)
    back = restore(moved, folder)
    if moved != line:
        back = re.sub(rb'"media":\{"mark":"rollout-trace-media\d*"\},', b"", back, count=1)
    assert back == line
    jsonschema.Draft202012Validator(schema()).validate(json.loads(moved))


def test_keep_leaves_references_and_needs_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking(IMAGE_URL), path)
    (folder_of(path) / PIXELS_SHA256).unlink()
    (kept,) = read(path, media="keep")
    reference = f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as=url;type=image/png)"
    assert kept.steps[0].messages[0]["content"][0]["image_url"]["url"] == reference  # type: ignore[index]
    # Written again it is a text like any other.
    assert written(kept, tmp_path / "again.jsonl").get("media") is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking("no media"), path)
    written(asking({"type": "text", "text": "?"}, IMAGE_URL), path)
    place = folder_of(path) / PIXELS_SHA256
    place.unlink()
    with pytest.raises(rt.FormatError) as raised:
        list(read(path))
    assert str(raised.value) == (
        f"{path}, line 2, $.messages[0].content[1].image_url.url: expected 1024 bytes of media with sha256 "
        f"{PIXELS_SHA256} in {place}, got no such file. Keep the folder beside the file, under its name and .media. "
        'To read without the data: read(..., media="keep").'
    )
    skipping = read(path, on_error="skip")
    assert len(list(skipping)) == 1
    assert len(skipping.skipped) == 1


def test_other_bytes_are_never_taken_for_the_media(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking(IMAGE_URL), path)
    (folder_of(path) / PIXELS_SHA256).write_bytes(bytes(1024))
    with pytest.raises(rt.FormatError, match="got 1024 other bytes"):
        list(read(path))


def test_a_file_that_was_cut_short_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    folder_of(path).mkdir()
    (folder_of(path) / PIXELS_SHA256).write_bytes(b"half")
    written(asking(IMAGE_URL), path)
    assert stored(path) == {PIXELS_SHA256: PIXELS}


def test_media_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking(IMAGE_URL), path)
    before = (folder_of(path) / PIXELS_SHA256).stat()
    written(asking(IMAGE_URL, IMAGE_URL), path, fsync=True)
    assert (folder_of(path) / PIXELS_SHA256).stat().st_ino == before.st_ino


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_compressed_files_have_a_folder_too(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rollouts{suffix}"
    with JSONLWriter(path, media="folder", fsync=True) as out:
        out.write(asking(IMAGE_URL))
    assert stored(path) == {PIXELS_SHA256: PIXELS}
    assert list(read(path)) == [asking(IMAGE_URL)]


def _write_many(path: Path) -> None:
    with JSONLWriter(path, media="folder") as out:
        for number in range(20):
            out.write(asking({"url": f"data:image/png;base64,{b64(bytes([number]) * 3000)}"}))


@pytest.mark.more
def test_several_processes_write_one_folder(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert stored(path) == {name(bytes([number]) * 3000): bytes([number]) * 3000 for number in range(20)}
    assert len(list(read(path))) == 60


def test_a_folder_that_cannot_be_written_is_a_write_error(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    folder_of(path).write_text("a file in its place")
    with JSONLWriter(path, media="folder") as out:
        with pytest.raises(rt.WriteError, match=r"the media of trajectory t could not be written to .*jsonl\.media"):
            out.write(asking(IMAGE_URL))
        out.write(asking("no media"))
    assert len(list(read(path))) == 1


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", refuse)
    folder = MediaFolder(tmp_path / "a.media")
    with pytest.raises(OSError, match="no space left"):
        folder.extract(encode(asking(IMAGE_URL)))
    assert list(folder.path.iterdir()) == []


def test_a_recording_passes_the_option_on(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with rt.recording(path, media="folder") as out:
        out.write(asking(IMAGE_URL))
    assert stored(path) == {PIXELS_SHA256: PIXELS}
    with JSONLWriter(path) as writer, pytest.raises(ValueError, match="Give it to the writer"):
        rt.recording(writer, media="folder")


def test_the_folder_is_beside_the_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with JSONLWriter("rollouts.jsonl", media="folder") as out:
        monkeypatch.chdir("elsewhere")
        out.write(asking(IMAGE_URL))
    assert stored(tmp_path / "rollouts.jsonl") == {PIXELS_SHA256: PIXELS}


def test_a_pickled_writer_keeps_the_option(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with JSONLWriter(path, media="folder") as first, pickle.loads(pickle.dumps(first)) as out:
        out.write(asking(IMAGE_URL))
    assert stored(path) == {PIXELS_SHA256: PIXELS}


def test_a_reference_to_more_bytes_than_there_are_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    text = f"rollout-trace-media(sha256={'0' * 64};bytes={'9' * 5000};as=base64)"
    line = {"schema": "rollout-trace/1", "media": {"mark": "rollout-trace-media"}, "id": "t", "metadata": {"a": text}}
    path.write_text(json.dumps(line))
    assert [trajectory.metadata for trajectory in rt.read(path)] == [{"a": text}]


def test_other_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='media is \'side\'; it can be "inline" or "folder"'):
        JSONLWriter(tmp_path / "rollouts.jsonl", media="side")  # type: ignore[arg-type]
    (tmp_path / "rollouts.jsonl").touch()
    with pytest.raises(ValueError, match='media is \'drop\'; it can be "restore" or "keep"'):
        read(tmp_path / "rollouts.jsonl", media="drop")  # type: ignore[arg-type]


def test_a_bad_mark_is_an_error_of_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"schema": "rollout-trace/1", "id": "t", "media": {"mark": "."}}')
    with pytest.raises(rt.FormatError, match=r"\$\.media\.mark: expected str matching regex"):
        list(read(path))


def test_a_reference_where_text_is_not_allowed_is_restored_before_the_line_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking(IMAGE_URL), path)
    line = json.loads(path.read_text())
    reference = f"{line['media']['mark']}(sha256={PIXELS_SHA256};bytes=1024;as=base64)"
    line["steps"][0]["request_bytes"] = {"base64": reference}
    path.write_text(json.dumps(line))
    (found,) = read(path)
    assert hashlib.sha256(found.steps[0].request_bytes or b"").hexdigest() == PIXELS_SHA256
    with pytest.raises(rt.FormatError, match=r"request_bytes"):
        list(read(path, media="keep"))


def test_a_reference_that_no_parser_of_the_data_takes_is_restored_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    written(asking(IMAGE_URL), path)
    reference = f"rollout-trace-media(sha256={PIXELS_SHA256};bytes=1024;as=base64)"
    array = {"dtype": "uint8", "shape": [1024], "data": reference}
    mark = {"mark": "rollout-trace-media"}
    path.write_text(json.dumps({"schema": "rollout-trace/1", "id": "t", "media": mark, "arrays": [array]}))
    assert [found.id for found in read(path)] == ["t"]
    # With the file gone, what is reported is that, and not that a reference is no base64.
    Path(f"{path}.media", PIXELS_SHA256).unlink()
    with pytest.raises(rt.FormatError, match=r"\$\.arrays\[0\]\.data: expected 1024 bytes of media"):
        list(read(path))


@pytest.mark.parametrize(
    ("damage", "code"), [(b'"name":"\xae"', "not-utf8"), (b'"unknown":' + b"9" * 5000, "media-missing")]
)
def test_missing_media_of_a_line_that_json_refuses_are_an_error_of_the_line(
    damage: bytes, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "rollouts.jsonl"
    text = f"rollout-trace-media(sha256={'0' * 64};bytes=1;as=base64)"
    line = {"schema": "rollout-trace/1", "id": "t", "media": {"mark": "rollout-trace-media"}, "task": {"id": text}}
    path.write_bytes(json.dumps(line).encode()[:-1] + b"," + damage + b"}\n")
    with pytest.raises(rt.FormatError, match=r"\$: expected 1 bytes of media"):
        list(read(path))
    found: list[Problem] = []
    validate([str(path)], found.append)
    assert code in [problem.code for problem in found]
