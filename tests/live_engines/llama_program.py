"""Serves a GGUF file with the HTTP server of llama.cpp that the wheel `xllamacpp` embeds, until it is killed.

`python llama_program.py MODEL NAME HOST PORT`, by the Python that has the wheel.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module


def main(model: str, name: str, host: str, port: str) -> None:
    """Starts the server, and waits."""
    xllamacpp = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {name}
    parameters.hostnames, parameters.port = [host], int(port)
    parameters.n_ctx, parameters.n_parallel, parameters.use_jinja = 4096, 2, True
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
