"""A socket guard for the Python processes that tests start: nothing beyond 127.0.0.1 can be reached."""

from __future__ import annotations

# It writes down what it refuses, in the file that the variable REFUSED names: an SDK makes an error of its own of what
# is raised, and a framework may go on.
GUARD = """
import os, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "127.0.0.1"  # a path, of a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", b"127.0.0.1", None):
        with open(os.environ["REFUSED"], "a") as log:
            log.write(f"{event} {host}\\n")
        raise OSError(f"the test refuses the network: {event} {host}")

sys.addaudithook(refuse)
"""
