"""``python -m rollout_trace.testing.serve SOURCE``: a scripted server for agents in any language."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from rollout_trace.data.exchange import Exchange

from ._messages import RequestRecord, Response
from ._server import LoopbackServer
from ._sources import BadSource, script_of, variables
from .replay import ReplayServer
from .scripted import ScriptedServer
from .traffic import Latency, RateLimit

_DESCRIPTION = """\
Serve the answers of a script on 127.0.0.1, for agents in any language.

SOURCE is one of
  FILE.py[:NAME]  a function of the request, a list of answers, or what
                  by_conversation() and by_content() give; NAME: "script"
  FILE.json       a list of answers: texts, or objects with the fields of a
                  Reply or a Fault; or an object of such lists, by a text of
                  the task
  FILE.jsonl      rollouts: each task is answered as it was when recorded
  exchanges       a file of pack_exchanges(), or a folder: the same requests
                  get the same bytes
"""
_EPILOG = """\
It runs until it gets SIGINT (Ctrl-C) or SIGTERM. Exit code 1: the script
could not answer some request. Exit code 2: there is nothing to serve.

  python -m rollout_trace.testing.serve script.py --port 8000
  eval "$(python -m rollout_trace.testing.serve script.py --print-env \\
      --port 8000)"   # prints the variables, serves nothing
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.print_env:
        if not given.port:
            parser.error("--print-env needs --port: the variables are those of a server that is started with it")
        _print_variables(f"http://127.0.0.1:{given.port}", exported=True)
        return 0
    if given.source is None:
        parser.error("give a SOURCE: a script (.py), answers (.json) or rollouts (.jsonl)")
    try:
        server = _server(given)
        server.start()
    except (BadSource, ImportError, OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    return _run(server, given)


def _run(server: LoopbackServer, given: argparse.Namespace) -> int:
    # Not an Event: `set()` in a signal's handler waits for ever for the lock of a `wait()` that it interrupts.
    stop: SimpleQueue[None] = SimpleQueue()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: stop.put(None))
    if given.stdin:
        threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    print(f"serving {given.source} at {server.url}", flush=True)
    _print_variables(server.url, exported=False)
    _wait_for(stop)
    server.close()
    left = getattr(server, "answers_left", 0)
    unused = f", {left} answers left" if left else ""
    print(f"{len(server.requests)} requests{unused}", flush=True)
    for error in server.errors:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
    return 1 if server.errors else 0


def _wait_for(stop: SimpleQueue[None]) -> None:
    while True:
        try:
            # With a timeout: on some platforms a wait without one keeps signals out.
            return stop.get(timeout=0.2)
        except Empty:
            pass


def _wait_for_end(stop: SimpleQueue[None]) -> None:
    for _ in sys.stdin:
        pass
    stop.put(None)


def _print_variables(url: str, *, exported: bool) -> None:
    for name, value in variables(url):
        print(f"{'export ' if exported else '  '}{name}={shlex.quote(value)}")
    sys.stdout.flush()


class _Logged(ScriptedServer):
    """A scripted server that prints each request."""

    def answer(self, record: RequestRecord) -> Response:
        response = super().answer(record)
        print(f"{record.index + 1} {record.method} {record.path} {response.status}", file=sys.stderr, flush=True)
        return response


def _server(given: argparse.Namespace) -> LoopbackServer:
    script: Any = script_of(given.source)
    if isinstance(script, list) and script and isinstance(script[0], Exchange):
        return ReplayServer(script, port=given.port)
    latency = Latency(given.latency, jitter=given.jitter)
    kind = _Logged if given.log else ScriptedServer
    return kind(
        script,
        model=given.model,
        tokenizer=given.tokenizer,
        latency=latency,
        tokens_per_second=given.tokens_per_second,
        max_parallel=given.max_parallel,
        rate_limit=None if given.rate_limit is None else RateLimit(given.rate_limit),
        scale_out=True,
        port=given.port,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use 0 to 65535")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rollout_trace.testing.serve",
        # The options are listed below it; above an error they would hide it.
        usage="%(prog)s [options] SOURCE",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        # Its width is that of the text above, whatever the terminal has.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=78),
    )
    add = parser.add_argument
    add("source", nargs="?", metavar="SOURCE", help="what to serve")
    add("--port", type=_port, default=0, metavar="N", help="port to listen on; default: any free one")
    add("--model", default="scripted", metavar="NAME", help="name in the list of models")
    add("--tokenizer", metavar="PATH", help="folder with tokenizer.json, for ids of a real one")
    add("--latency", type=float, default=0.0, metavar="SECONDS", help="before the first token")
    add("--jitter", type=float, default=0.0, metavar="SHARE", help="of the latency, 0 to 1")
    add("--tokens-per-second", type=float, metavar="N", help="of each answer")
    add("--max-parallel", type=int, metavar="N", help="answers at the same time; others wait")
    add("--rate-limit", type=int, metavar="N", help="requests a second; others get status 429")
    add("--print-env", action="store_true", help="print the variables for --port, and end")
    add("--stdin", action="store_true", help="end when stdin is closed, too")
    add("--log", action="store_true", help="print each request to stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
