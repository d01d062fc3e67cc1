"""The page's server: its answers, and the requests that it refuses, over real sockets."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rollout_trace as rt
from rollout_trace.view import page_data
from rollout_trace.view.assets import asset
from rollout_trace.view.index import Index
from rollout_trace.view.page_data import PageData
from rollout_trace.view.server import HEADERS, PageServer
from tests.view.files import run, write

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found: str = self.json["error"]
        return found


class Client:
    """Sends requests as they are given, without a browser's or a library's headers."""

    def __init__(self, server: PageServer, index: Index) -> None:
        self.server = server
        self.index = index
        self.token = server.address.split("/")[3]

    def ask(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Asks for a path behind the token; one that begins with a slash is the whole path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        target = path if path.startswith("/") else f"/{self.token}/{path}"
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        given = {"Host": f"127.0.0.1:{self.server.port}", **(headers or {})}
        if body is not None:
            given.setdefault("Content-Length", str(len(body)))
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        with connection.getresponse() as response:
            answer = Answer(response.status, response.msg, response.read())
        connection.close()
        return answer

    def get(self, path: str) -> Any:
        """The JSON of an answer that is fine."""
        answer = self.ask(path)
        assert answer.status == 200, answer.body
        return answer.json

    def note(self, key: str, values: Any, **options: Any) -> Answer:
        body = json.dumps({"key": key, "values": values}).encode()
        return self.ask("api/annotate", method="POST", headers=JSON, body=body, **options)


class Served:
    """Serves files, for the time of a test."""

    def __init__(self) -> None:
        self._open: list[tuple[Index, PageServer, threading.Thread]] = []

    def __call__(self, *paths: Path, writable: bool = True) -> Client:
        index = Index(list(map(str, paths)))
        index.wait()
        server = PageServer(PageData(index, title="x", writable=writable))
        thread = threading.Thread(target=server.serve)
        thread.start()
        self._open.append((index, server, thread))
        return Client(server, index)

    def close(self) -> None:
        for index, server, thread in self._open:
            server.stop()
            thread.join()
            server.close()
            index.close()


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.jsonl", map(run, range(6)))


@pytest.fixture
def client(served: Served, path: Path) -> Client:
    return served(path)


# What it answers


def test_the_page_and_its_files(client: Client) -> None:
    page = client.ask("")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"<title>" in page.body
    for name in ("page.css", "page.js"):
        assert name.encode() in page.body
        answer = client.ask(name)
        assert (answer.body, answer.headers["Content-Type"]) == asset(name)
    assert client.ask("", method="HEAD").body == b""


@pytest.mark.parametrize(
    "name",
    [
        "order.txt",
        "dom.js",
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "/etc/passwd",
        "x.js",
        "index.html",
        "api/",
        "api/x",
    ],
)
def test_nothing_else_is_a_file_of_the_page(client: Client, name: str) -> None:
    assert client.ask(name).status == 404


def test_every_answer_has_the_headers(client: Client) -> None:
    answers = [client.ask(path) for path in ("", "api/info", "api/nothing", "/", "api/rows?since=x")]
    assert [one.status for one in answers] == [200, 200, 404, 404, 400]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in HEADERS["Content-Security-Policy"]


def test_info(client: Client, path: Path) -> None:
    info = client.get("api/info")
    assert info["files"] == [{"path": str(path), "name": "x.jsonl"}]
    expected = {
        "title": "x",
        "total": 6,
        "writable": True,
        "static": False,
        "indexing": None,
        "version": rt.__version__,
    }
    assert {name: info[name] for name in expected} == expected


def test_the_rows_that_changed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "MOST_ROWS", 4)
    first = client.get("api/rows")
    assert [row["id"] for row in first["rows"]] == ["t0", "t1", "t2", "t3"]
    rest = client.get(f"api/rows?after={first['after']}")
    assert [row["id"] for row in rest["rows"]] == ["t4", "t5"]
    assert (rest["after"], rest["generation"], rest["epoch"]) == (None, first["generation"], first["epoch"])
    assert client.get(f"api/rows?since={first['generation']}")["rows"] == []
    assert client.note("1-2", {"reward": 7}).status == 200
    client.index.wait()
    (row,) = client.get(f"api/rows?since={first['generation']}")["rows"]
    assert (row["key"], row["reward"]) == ("1-2", 7)


def test_a_search_in_whole_trajectories(client: Client, path: Path) -> None:
    asked = "api/search?where=%22answer+3%22+in+text"
    assert client.get(asked) == {"keys": ["1-4"], "share": 1, "problem": None}
    write(path, [run(6, "answer 3 again")])
    client.index.wait()
    assert client.get(asked)["keys"] == ["1-4", "1-7"]
    found = client.get("api/search?where=any(step.latency+is+None+and+reward+%3E+%22a%22+for+step+in+steps)")
    assert "cannot be compared" in found["problem"]
    assert "there is no name 'colour'" in client.ask("api/search?where=colour").error


def test_a_trajectory(client: Client, path: Path) -> None:
    key = client.get("api/rows")["rows"][3]["key"]
    outline = client.get(f"api/trajectory?key={key}")
    assert outline["summary"]["id"] == "t3"
    (step,) = client.get(f"api/steps?key={key}&first=0&end=9")
    assert step["tokens"]["ids"] == [3, 4]
    raw = client.get(f"api/raw?key={key}&step=0")
    assert (raw["request"], raw["response"]) == ('{\n  "model": "m"\n}', "{}")
    assert json.loads(raw["line"]) == json.loads(path.read_text().splitlines()[3])
    assert client.ask(f"api/raw?key={key}&step=1").status == 404


def test_a_step_names_the_trajectories_that_it_opened(served: Served, tmp_path: Path) -> None:
    parent = run(0, episode_id="e\ud83d")
    child = run(1, episode_id="e\ud83d", parent_id="t0", parent_step_id="s0")
    client = served(write(tmp_path / "x.jsonl", [child, parent]))
    keys = {row["id"]: row["key"] for row in client.get("api/rows")["rows"]}
    assert client.get(f"api/steps?key={keys['t0']}")[0]["children"] == ["t1"]


def test_no_more_than_fifty_steps_at_once(served: Served, tmp_path: Path) -> None:
    client = served(write(tmp_path / "x.jsonl", [run(0, steps=[run(number).steps[0] for number in range(60)])]))
    assert len(client.get("api/steps?key=1-1&first=0&end=60")) == 50
    assert len(client.get("api/steps?key=1-1&first=55&end=99")) == 5
    assert client.get("api/steps?key=1-1&first=60") == []


def test_hostile_text_stays_text(served: Served, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>\u202e\x1b[31m\ud83d" + "x" * 1_000_000
    client = served(write(tmp_path / "x.jsonl", [run(0, hostile, name=hostile[:60])]))
    assert client.get("api/rows")["rows"][0]["name"] == hostile[:60]
    assert client.get("api/steps?key=1-1")[0]["new"][0]["parts"][0]["text"] == hostile
    assert client.ask("api/rows").headers["Content-Type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ("api/trajectory", 400, "key is missing"),
        ("api/trajectory?key=9-9", 404, "There is no trajectory 9-9"),
        ("api/trajectory?key='%20OR%201", 404, "There is no trajectory"),
        ("api/trajectory?key=1-%C2%B2", 404, "There is no trajectory"),
        ("api/steps?key=1-1&first=-1", 400, "first is '-1'"),
        ("api/steps?key=1-1&first=1e9", 400, "give a whole number"),
        ("api/rows?since=99999999999", 400, "since is"),
        ("api/search", 400, "where is missing"),
        ("api/rows?" + "a&" * 30, 400, "cannot be read"),
        ("api/annotate", 405, "nothing to get"),
    ],
)
def test_bad_requests_get_a_sentence(client: Client, asked: str, status: int, said: str) -> None:
    answer = client.ask(asked)
    assert answer.status == status
    assert said in answer.error


def test_a_failure_of_the_server_is_no_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client.index, "search", None)
    caplog.set_level(logging.DEBUG)
    answer = client.ask("api/search?where=secret")
    assert answer.status == 500
    assert answer.error.startswith("The server failed: TypeError")
    assert "Traceback" not in answer.body.decode() + caplog.text
    assert "secret" not in caplog.text


# Live


def test_the_page_learns_of_changes(client: Client, path: Path) -> None:
    before = client.get("api/info")["generation"]
    write(path, [run(6)])
    client.index.wait()
    info = client.get("api/info")
    assert (info["total"], info["generation"] > before) == (7, True)


def test_info_looks_for_changes(client: Client, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_trace.view.index._CHECKED_EVERY", -1)
    write(path, [run(6)])
    client.get("api/info")
    thread = client.index._thread
    assert thread is not None
    thread.join()
    assert client.get("api/info")["total"] == 7


def test_a_trajectory_whose_line_went_away(client: Client, path: Path) -> None:
    path.write_bytes(b"")
    answer = client.ask("api/trajectory?key=1-3")
    assert answer.status == 409
    assert "the file was changed" in answer.error


# Notes


def test_notes(client: Client, path: Path) -> None:
    values = {"reward": 0.75, "rewards": {"style": 1}, "metadata": {"note": "Good."}}
    answer = client.note("1-1", values)
    assert answer.status == 200
    assert (answer.json["key"], answer.json["reward"], answer.json["note"]) == ("1-1", 0.75, "Good.")
    found = next(iter(rt.read(path)))
    assert (found.reward, found.rewards, found.metadata) == (0.75, {"style": 1.0}, {"note": "Good."})
    client.index.wait()
    assert [row["key"] for row in client.get("api/rows")["rows"] if row.get("note") == "Good."] == ["1-1"]
    assert client.get("api/trajectory?key=1-1")["summary"]["reward"] == 0.75


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no value is given"),
        ({"reward": "high"}, "Expected `float | null`"),
        ({"steps": {}}, "unknown field `steps`"),
        ([], "Expected `object`"),
    ],
)
def test_notes_that_are_none(client: Client, path: Path, values: Any, said: str) -> None:
    answer = client.note("1-1", values)
    assert answer.status == 400
    assert said in answer.error
    assert not path.with_name("x.notes.jsonl").exists()


def test_notes_that_cannot_be_read(client: Client) -> None:
    for body in (b"", b"{", b"\xff", b"[" * 100_000, b'{"key": "1-1", "values": {"reward": NaN}}'):
        assert client.ask("api/annotate", method="POST", headers=JSON, body=body).status == 400
    assert client.note("9-9", {"reward": 1}).status == 404


def test_a_page_that_may_not_write(served: Served, path: Path) -> None:
    client = served(path, writable=False)
    assert client.get("api/info")["writable"] is False
    answer = client.note("1-1", {"reward": 1})
    assert answer.status == 403
    assert "--read-only" in answer.error
    assert list(path.parent.iterdir()) == [path]


def test_getting_writes_nothing(client: Client, path: Path) -> None:
    for name in (
        "",
        "api/info",
        "api/rows",
        "api/search?where=reward",
        "api/trajectory?key=1-1",
        "api/annotate?key=1-1&reward=2",
    ):
        client.ask(name)
    assert list(path.parent.iterdir()) == [path]


def test_many_notes_at_once(client: Client, path: Path) -> None:
    threads = [threading.Thread(target=client.note, args=("1-2", {"rewards": {f"r{at}": at}})) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(rt.read(path))[1].rewards == {f"r{at}": at for at in range(8)}


# Requests of others


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "[::1]:{port}",
        "",
        "127.0.0.2:{port}",
    ],
)
def test_another_host_is_refused(client: Client, host: str) -> None:
    """A name of another site that was pointed at this machine (DNS rebinding)."""
    answer = client.ask("api/info", headers={"Host": host.format(port=client.server.port)})
    assert answer.status == 403
    assert "host" in answer.error


def test_no_host_and_two_hosts_are_refused(client: Client) -> None:
    for hosts in ([], [f"127.0.0.1:{client.server.port}", "evil.example"]):
        lines = [f"GET /{client.token}/api/info HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close"]
        assert b" 403 " in sent(client, "\r\n".join([*lines, "", ""]).encode()).split(b"\r\n")[0]


def test_the_name_of_this_machine_is_taken(client: Client) -> None:
    port = client.server.port
    headers = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}", "Sec-Fetch-Site": "same-origin"}
    assert client.ask("api/info", headers=headers).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:{port}.evil.example",
        "http://localhost:{port}",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(client: Client, path: Path, origin: str, method: str) -> None:
    headers = {**JSON, "Origin": origin.format(port=client.server.port)}
    body = b'{"key": "1-1", "values": {"reward": 1}}' if method == "POST" else None
    answer = client.ask("api/annotate" if body else "api/info", method=method, headers=headers, body=body)
    assert answer.status == 403
    assert "origin" in answer.error
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_what_the_browser_says_of_the_site(client: Client, site: str, status: int) -> None:
    assert client.ask("", headers={"Sec-Fetch-Site": site}).status == status


@pytest.mark.parametrize(
    "asked", ["/", "/api/info", "/x/api/info", "//api/info", "/{token}x/api/info", "/{head}/api/info", "*", "/é/"]
)
def test_without_the_token_there_is_nothing(client: Client, asked: str) -> None:
    target = asked.format(token=client.token, head=client.token[:-1])
    answer = sent(
        client, f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\nConnection: close\r\n\r\n".encode()
    )
    assert b" 404 " in answer.split(b"\r\n")[0]
    assert client.token.encode() not in answer


def test_the_token_is_new_each_time(served: Served, path: Path) -> None:
    tokens = {served(path).token for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 24 for token in tokens)


def test_a_form_of_another_page_cannot_write(client: Client, path: Path) -> None:
    """What a browser sends without asking first: forms, as text or as multipart."""
    body = b'{"key": "1-1", "values": {"reward": 1}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", ""):
        answer = client.ask("api/annotate", method="POST", headers={"Content-Type": kind}, body=body)
        assert answer.status == 415
    assert client.ask("api/annotate", method="POST", body=body).status == 415
    assert list(path.parent.iterdir()) == [path]


def test_bodies_are_bounded(client: Client) -> None:
    for length, status in (("1048577", 413), ("9" * 40, 413), ("x", 411), ("-1", 411), ("", 411)):
        answer = client.ask("api/annotate", method="POST", headers={**JSON, "Content-Length": length})
        assert answer.status == status
    chunked = {**JSON, "Transfer-Encoding": "chunked"}
    assert client.ask("api/annotate", method="POST", headers=chunked, body=b"").status == 411


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    answer = client.ask("api/annotate", method=method)
    assert answer.status == 501
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70_000]
)
def test_what_is_no_request(client: Client, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    answer = sent(client, data)
    assert b"Traceback" not in answer
    assert client.ask("api/info").status == 200
    assert capfd.readouterr().err == ""


def test_a_browser_that_goes_away(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", client.server.port)) as connection:
            connection.sendall(f"GET /{client.token}/api/rows HTTP/1.1\r\nHost: 127.0.0.1:".encode())
    assert client.ask("api/info").status == 200
    assert capfd.readouterr().err == ""


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    assert client.server._server.server_address[0] == "127.0.0.1"


def sent(client: Client, data: bytes) -> bytes:
    """What is answered to bytes."""
    with socket.create_connection(("127.0.0.1", client.server.port), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionResetError:  # It closed before it had read everything.
            pass
    return answer
