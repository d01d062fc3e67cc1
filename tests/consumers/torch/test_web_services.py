"""docs/threads.md: its FastAPI service on uvicorn, in one process and in several workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

from page_blocks import ROOT, Block, blocks_of

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.documentation.reader import read_page
from tests.documentation.stage import programs


def of_the_service(block: Block) -> bool:
    return "One trajectory a request" in block.headings


def test_sixty_requests_at_once_stay_apart(tmp_path: Path) -> None:
    read_page("docs/threads.md", tmp_path, programs, wanted=of_the_service)


def test_workers_write_one_file(tmp_path: Path) -> None:
    """The section "Several workers"."""
    (tmp_path / "service.py").write_text(next(filter(of_the_service, blocks_of("docs/threads.md"))).text)
    with ScriptedServer("An answer.") as server:
        variables = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "uvicorn", "service:app", "--workers", "3", "--port", "0"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            shown = ""
            while shown.count("Application startup complete") < 3:
                line = process.stderr.readline()
                assert line, f"the service ended:\n{shown}"
                shown += line
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", shown)

            def post(number: int) -> bytes:
                with urlopen(f"http://127.0.0.1:{port}/ask?question={number}", data=b"") as answer:
                    found: bytes = answer.read()
                    return found

            with ThreadPoolExecutor(30) as pool:
                answers = list(pool.map(post, range(60)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    found = list(rt.read(tmp_path / "requests.jsonl"))
    assert sorted((one.metadata or {})["question"] for one in found) == sorted(map(str, range(60)))
    assert all(any(one.id.encode() in answer for answer in answers) for one in found)
