"""The options, the mark, and what may be wrong with a cassette."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import rollout_trace as rt

from .project import Project, exchanges_of, read

ONE = """
@pytest.mark.replay
def test_one():
    assert solve("What is the weather in Paris?") == "Paris: 5 degrees."
"""
PATH = "cassettes/test_agent/test_one.jsonl"


def test_without_a_cassette_a_test_fails_and_nothing_is_called(project: Project) -> None:
    project.tests(ONE)
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    result = project.replay()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there is no cassette*test_one.jsonl.", "*pytest --replay=record*test_one*"])
    result.stdout.no_fnmatch_line("*During handling*")


@pytest.mark.parametrize("ci", ["true", "0"])
def test_auto_records_what_is_missing_but_not_in_ci(project: Project, ci: str) -> None:
    project.tests(ONE)
    project.monkeypatch.setenv("CI", ci)
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    first = project.run("--replay=auto")
    if ci == "true":
        first.assert_outcomes(errors=1)
        assert project.model.requests == []
        return
    first.assert_outcomes(passed=1)
    assert len(project.model.requests) == 2
    project.replay("--replay=auto").assert_outcomes(passed=1)


def test_off_calls_the_model_and_needs_no_cassette(project: Project) -> None:
    project.tests(ONE)
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    project.run("--replay=off").assert_outcomes(passed=1)
    assert len(project.model.requests) == 2
    assert not (project.pytester.path / "cassettes").exists()


def test_the_ini_file_has_the_defaults(project: Project) -> None:
    project.tests(ONE)
    project.pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nrollout_replay = record\nrollout_dir = seen\n"
        "rollout_keep = all\nrollout_engine = vllm\n"
    )
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    project.run().assert_outcomes(passed=1)
    (written,) = rt.read(project.pytester.path / "seen/test_agent-test_one.jsonl")
    assert all(step.completion_token_ids is not None for step in written.steps)
    assert len(project.cassette(PATH)) == 1


def test_a_wrong_ini_value_is_named(project: Project) -> None:
    project.pytester.makeini("[pytest]\nrollout_replay = sometimes\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*rollout_replay = 'sometimes'*expected one of replay, record, auto, off*"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("timimg=True", "*no option 'timimg'*cli, engine, ignore, normalize, order, timing*"),
        ("cli='cloud'", "*unknown program 'cloud'. Known programs: claude-code, codex*"),
        ("timing=3", "*timing=3*True or False*"),
        ("order='any'", "*order='any'*recorded*free*"),
        ("normalize=5", "*normalize=5*function*"),
        ("7", "*7 is no path*"),
        ("ignore=[3]", "*ignore*3*"),
        ("engine='vlm'", "@pytest.mark.replay: engine='vlm' is not known*"),
    ],
)
def test_a_wrong_mark_is_named(project: Project, mark: str, message: str) -> None:
    project.tests(ONE.replace("mark.replay", f"mark.replay({mark})"))
    result = project.record()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*During handling*")
    assert project.model.requests == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{broken\n", "*cannot be read*line 1*"),
        ("", "*has no recording of test_agent.py::test_one*"),
        ('{"name": "old", "request": ""}\n', "*cannot be read*line 1*"),
        ('{"schema": "rollout-trace/9", "id": "a"}\n', "*cannot be read*rollout-trace/9*"),
    ],
    ids=["broken", "empty", "other", "newer"],
)
def test_a_broken_cassette_is_named_and_stays(project: Project, content: str, message: str) -> None:
    project.tests(ONE)
    path = project.pytester.path / PATH
    path.parent.mkdir(parents=True)
    path.write_text(content)
    result = project.replay()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    assert path.read_text() == content


def test_a_file_of_rollouts_without_exchanges_is_no_cassette(project: Project) -> None:
    project.tests(ONE)
    path = project.pytester.path / PATH
    project.record().assert_outcomes(passed=1)
    record = json.loads(path.read_text())
    del record["exchanges"]
    path.write_text(json.dumps(record) + "\n")
    result = project.replay()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no HTTP exchanges*"])


def test_a_cassette_that_cannot_be_written_fails_the_recording(project: Project) -> None:
    project.tests(ONE)
    (project.pytester.path / "cassettes").write_text("a file in the place of the folder")
    result = project.record()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*cannot be written*"])


def test_a_failed_test_leaves_its_cassette_as_it_is(project: Project) -> None:
    project.tests(ONE)
    project.record().assert_outcomes(passed=1)
    before = read(project.pytester.path / PATH)
    project.change('"Paris: 5 degrees."', '"another answer"', "test_agent.py")
    result = project.record()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not recorded: the test failed*"])
    assert read(project.pytester.path / PATH) == before


def test_recording_anew_prints_what_changed(project: Project) -> None:
    project.tests(ONE)
    project.record().assert_outcomes(passed=1)
    project.record().stdout.fnmatch_lines(["*test_one: recorded again, 2 exchanges, as before"])
    project.change("You know the weather.", "You know the time.")
    result = project.record()
    result.stdout.fnmatch_lines(["*recorded again, 2 exchanges, changed:*", "*You know the time.*"])


def test_tests_share_a_cassette_and_keep_their_lines(project: Project) -> None:
    project.tests("""
pytestmark = pytest.mark.replay("shared.jsonl")

@pytest.mark.parametrize("city", ["Paris", "Rome"])
def test_city(city):
    assert solve(f"What is the weather in {city}?") == f"{city}: {len(city)} degrees."

class TestMore:
    def test_oslo(self):
        assert solve("What is the weather in Oslo?") == "Oslo: 4 degrees."

    def test_silent(self):
        pass
""")
    project.record().assert_outcomes(passed=4)
    tests = [(one.metadata or {}).get("test") for one in project.cassette("shared.jsonl")]
    assert tests == [
        "test_agent.py::test_city[Paris]",
        "test_agent.py::test_city[Rome]",
        "test_agent.py::TestMore::test_oslo",
        "test_agent.py::TestMore::test_silent",
    ]
    project.replay().assert_outcomes(passed=4)
    before = read(project.pytester.path / "shared.jsonl").splitlines()
    project.record("-k", "Rome").assert_outcomes(passed=1, deselected=3)
    after = read(project.pytester.path / "shared.jsonl").splitlines()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True]


def test_several_cassettes_answer_one_test(project: Project) -> None:
    project.tests("""
@pytest.mark.replay("a.jsonl")
def test_a():
    solve("What is the weather in Paris?")

@pytest.mark.replay("b.jsonl")
def test_b():
    solve("What is the weather in Rome?")
""")
    project.record().assert_outcomes(passed=2)
    for name in ("a", "b"):
        path = project.pytester.path / f"{name}.jsonl"
        record = json.loads(path.read_text())
        # As a file that was recorded elsewhere: of no test in particular.
        del record["metadata"]["test"]
        path.write_text(json.dumps(record) + "\n")
    project.tests("""
@pytest.mark.replay("b.jsonl")
class TestBoth:
    @pytest.mark.replay("a.jsonl")
    def test_both(self):
        assert solve("What is the weather in Rome?") == "Rome: 4 degrees."
        assert solve("What is the weather in Paris?") == "Paris: 5 degrees."

    @pytest.mark.replay("a.jsonl")
    def test_half(self):
        solve("What is the weather in Rome?")
""")
    result = project.replay()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*2 recorded calls were not made:",
            "*user: What is the weat*",
            "*record again: pytest --replay=record test_agent.py::TestBoth::test_half",
        ]
    )


def test_a_compressed_cassette(project: Project) -> None:
    project.tests(ONE.replace("mark.replay", "mark.replay('one.jsonl.gz')"))
    project.record().assert_outcomes(passed=1)
    assert gzip.decompress((project.pytester.path / "one.jsonl.gz").read_bytes()).startswith(b'{"schema"')
    project.replay().assert_outcomes(passed=1)


def test_what_may_vary_is_declared(project: Project) -> None:
    project.tests("""
import os
import re
import pytest

def without_dates(body):
    body["messages"][0]["content"] = re.sub(r"\\d+", "N", body["messages"][0]["content"])
    return body

@pytest.mark.replay("one.jsonl", ignore="temperature")
class TestVaries:
    @pytest.mark.replay(ignore=["user"], normalize=without_dates)
    def test_one(self):
        agent.SYSTEM = "Today is day " + os.environ["DAY"]
        from openai import OpenAI
        with agent.client() as client:
            client.chat.completions.create(
                model="scripted", user=os.environ["DAY"], temperature=float(os.environ["DAY"]),
                messages=agent.begin("hello"),
            )
""")
    project.monkeypatch.setenv("DAY", "1")
    project.record().assert_outcomes(passed=1)
    project.monkeypatch.setenv("DAY", "2")
    project.replay().assert_outcomes(passed=1)
    project.change(", normalize=without_dates", "", "test_agent.py")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Today is day*"])


def test_a_failed_assert_of_the_fixture_shows_the_conversation_once(project: Project) -> None:
    project.tests("""
def test_bad(rollout):
    solve("What is the weather in Rome?")
    rollout.assert_called("wether")

def test_plain(rollout):
    solve("What is the weather in Rome?")
    assert rollout.tool_calls == []
""")
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    result = project.run("--rollout-dir=seen")
    result.assert_outcomes(failed=2)
    text = result.stdout.str()
    first, plain = text.split("_ test_plain _")
    assert first.count("assistant Rome: 4 degrees.") == 1
    assert "rollout-trace show seen/test_agent-test_bad.jsonl" in first
    assert '"name": "weather"' in plain


def test_rollouts_of_failed_tests_are_kept(project: Project) -> None:
    project.tests("""
@pytest.mark.replay
def test_good(rollout):
    solve("What is the weather in Paris?")

@pytest.mark.replay
def test_bad(rollout):
    assert solve("What is the weather in Rome?") == "Sunny."
""")
    project.monkeypatch.setenv("MODEL_URL", project.model.base_url)
    result = project.run("--replay=off", "--rollout-dir=seen")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*- rollout -*", "*Rome: 4 degrees.*", "*rollout-trace show seen/test_agent-test_bad.jsonl*"]
    )
    seen = project.pytester.path / "seen"
    assert [path.name for path in seen.rglob("*.jsonl")] == ["test_agent-test_bad.jsonl"]
    (written,) = rt.read(seen)
    assert written.status == "failed"
    assert written.error is not None
    assert written.error.type == "AssertionError"
    project.run("--replay=off", "--rollout-dir=seen", "--rollout-keep=all")
    assert sorted(path.name for path in seen.rglob("*.jsonl")) == [
        "test_agent-test_bad.jsonl",
        "test_agent-test_good.jsonl",
    ]


def test_calls_of_fixtures_are_the_tests_too(project: Project) -> None:
    project.tests("""
@pytest.fixture
def warm():
    solve("What is the weather in Oslo?")
    yield
    solve("What is the weather in Bern?")

@pytest.mark.replay
def test_one(warm):
    solve("What is the weather in Paris?")
""")
    project.record().assert_outcomes(passed=1)
    assert len(exchanges_of(project.cassette(PATH))) == 6
    project.replay().assert_outcomes(passed=1)
    project.change("Bern", "Kyiv", "test_agent.py")
    result = project.replay()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*Kyiv*"])


def test_a_skipped_and_an_expected_failure_stay_what_they_are(project: Project) -> None:
    project.tests("""
@pytest.mark.replay("x.jsonl")
def test_skipped():
    pytest.skip("not now")

@pytest.mark.replay("x.jsonl")
@pytest.mark.xfail(strict=True)
def test_expected():
    solve("What is the weather in Paris?")
    assert False

@pytest.mark.skip
@pytest.mark.replay("missing.jsonl")
def test_never():
    pass
""")
    first = project.record()
    first.assert_outcomes(skipped=2, xfailed=1)
    project.monkeypatch.setenv("CI", "true")
    project.replay("-k", "never").assert_outcomes(skipped=1, deselected=2)


def test_a_normalizer_that_fails_is_named(project: Project) -> None:
    project.tests(
        """
@pytest.mark.replay("one.jsonl", normalize=lambda body: body["nothing"])
def test_one():
    agent.MODEL = os.environ["NAME"]
    solve("hello")
""".replace("os.environ", "__import__('os').environ")
    )
    project.monkeypatch.setenv("NAME", "scripted")
    project.record().assert_outcomes(passed=1)
    project.monkeypatch.setenv("NAME", "other")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*normalize*KeyError*nothing*"])


def test_a_live_call_past_the_libraries_is_refused(project: Project) -> None:
    project.tests("""
import http.client

@pytest.mark.replay("one.jsonl")
def test_one():
    try:
        http.client.HTTPSConnection("bedrock-runtime.eu-west-1.amazonaws.com").request("POST", "/")
    except OSError as error:
        print(error)
""")
    project.pytester.path.joinpath("one.jsonl").write_text("")
    project.replay("--replay=replay").assert_outcomes(errors=1)
    (project.pytester.path / "one.jsonl").unlink()
    project.tests("""
import http.client
import os

@pytest.mark.replay("one.jsonl")
def test_one():
    if "LIVE" in os.environ:
        try:
            http.client.HTTPSConnection("bedrock-runtime.eu-west-1.amazonaws.com").request("POST", "/")
        except OSError as error:
            print(error)
""")
    project.record().assert_outcomes(passed=1)
    project.monkeypatch.setenv("LIVE", "1")
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["a live call to bedrock-runtime.eu-west-1.amazonaws.com was refused*"])


def test_a_known_program_has_a_home_and_a_folder_of_the_test(project: Project) -> None:
    project.tests("""
import pathlib, subprocess, sys, uuid

@pytest.mark.replay("one.jsonl", cli="claude-code", normalize=lambda body: {**body, "temperature": 0})
def test_folder(rollout):
    assert (list(rollout.folder.iterdir()), rollout.folder.stat().st_mode & 0o777) == ([], 0o755)
    assert rollout.folder.parent.stat().st_mode & 0o777 == 0o700
    command = [sys.executable, "-c", "import os; print(os.environ['HOME'])"]
    home = subprocess.run(command, capture_output=True, text=True)
    assert home.stdout.strip() == str(rollout.folder.parent / "home")
    solve(f"What is the weather in {rollout.folder}, {uuid.uuid4()}, agent a{uuid.uuid4().hex[:16]}?")
    pathlib.Path("seen").write_text(str(rollout.folder))

def test_none(rollout):
    with pytest.raises(AssertionError, match="name a program in its mark"):
        rollout.folder
""")
    project.record().assert_outcomes(passed=2)
    project.replay().assert_outcomes(passed=2)
    assert not Path(Path("seen").read_text()).exists()
