"""The page's words: how it was measured, and plain facts on the peers that no figure shows."""

from __future__ import annotations

BETTER = """\
Named is another whose quartiles are all better than those of our best row, by more than the bare client differs from
itself; then plain facts that no figure shows."""

METHOD = """\
Ratios to the bare client of the same environment: median of the rounds, with the quartiles in brackets; 1.00 is no
cost. *Calling thread* is the CPU time of the thread that makes the call. *Whole process* is that of all threads, for
each call, until the peer's `flush` has returned: decoding, encoding, background threads. Every peer runs in a process
that stays alive, beside one of the bare client; each round runs a block of each, in random order, so that other load
hits all alike. The first round is thrown away. In place of the network a function answers, in vLLM's shape: *small*
1.7 kB; *63 kB* with 2,000 prompt ids and 500 tokens with logprobs; *stream* the same answer as 102 events. The
answers of a block differ. A peer that sends its records to a service has them kept in the process instead (see *Who*):
what a network and the service would add is not in the figures."""

TASKS = """\
64 agents run at once on one asyncio client, each in a trace of its own. Measured: *calls a second* until the last
answer, and CPU time of the whole process for each call until all is recorded. Numbers are ratios to the bare client."""

BEHAVIOUR = """\
Each cell is made by code: a server on loopback sends an answer, and what the peer recorded is searched for the ids and
logprobs of that answer. **yes**: all of it is there; *partly* has its reason. The calls ask for ids and logprobs
themselves. *Extras* are routed experts and prompt logprobs, in a recorded answer of vLLM. A stream that ends early
counts as *yes* if the tokens until then are there and the call is marked as failed or unfinished. The call of a thread
counts as *yes* if it is in the trace that started the thread, without a change of the program."""

PROXY = """\
The other way to capture token ids is a proxy between agent and engine, for agents in any language, with nothing in
their process. The table has the CPU time of the proxy's process for each call over loopback, the time that it adds to
the call, and the calls a second of 64 tasks. It also says whether ids and logprobs reach the client where the server
put them.
Client, proxy and server share the machine. LiteLLM runs with one worker and no callback."""

OTHER_STRENGTHS = (
    "Langfuse, LangSmith, MLflow, Braintrust, Opik, Weave and Logfire come with a service or a server that stores the "
    "traces of a whole team and shows them in a browser. This library has files and a local page.",
    "OpenInference and Logfire record into OpenTelemetry, beside whatever else a program traces.",
    "A proxy records agents in any language, and programs whose process cannot be changed.",
    "ART's trajectories belong to a trainer, which uses them without an export.",
)

NOT_MEASURED = (
    "Agent-lightning 1.0 has no recorder in the process any more, but a gateway: the last release with one is "
    "measured, without its store.",
    "ART needs an openai client before version 3: its bare client is of that version, too.",
    "Weave is measured without its HTTP client, whose cost comes on top.",
    "LiteLLM's proxy is the newest one whose extra `proxy` could be installed.",
)
