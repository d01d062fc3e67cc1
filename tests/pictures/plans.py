"""Drawings of how parts belong together: where the recorder sits, which way to record, a run of several agents."""

from __future__ import annotations

import rollout_trace as rt
from tests.consumers import recorded
from tests.pictures.figure import WIDTH, Figure

WAYS = (
    ("Many runs over a list of tasks?", "rt.collect", "the agent is a function"),
    ("A program you do not change?", "rollout-trace run", "no change at all"),
    ("A supported framework?", "record(agent)", "agents, tools, retries"),
    ("You make the client yourself?", "rt.wrap_openai", "one line at the client"),
    ("Made somewhere inside?", "rt.instrument()", "one line in the process"),
)


def recorder() -> str:
    """Where the recorder sits."""
    figure = Figure("The recorder is in the agent's process: it copies what passes through the client into a file")
    figure.rect(16, 16, 262, 118, round_=8)
    figure.text(28, 36, "the agent's process", "small dim")
    figure.box(28, 48, 92, ["agent", "unchanged"], "read")
    figure.box(170, 48, 96, ["client", "your own"], "read")
    figure.box(330, 48, 94, ["engine", "vLLM, …"], "read")
    figure.arrow(122, 64, 168, 64)
    figure.arrow(168, 80, 122, 80)
    figure.arrow(268, 64, 328, 64)
    figure.arrow(328, 80, 268, 80)
    figure.text(218, 116, "the bytes are copied", "small a", anchor="middle")
    figure.arrow(218, 122, 218, 158)
    figure.box(140, 160, 156, ["rollouts.jsonl", "one line a trajectory"], "la")
    figure.arrow(138, 182, 116, 182)
    figure.text(110, 186, "look", anchor="end")
    figure.arrow(298, 182, 320, 182)
    figure.text(326, 186, "export, train")
    figure.y = 206
    return figure.svg()


def ways() -> str:
    """From questions to one of five ways."""
    figure = Figure("Which of five ways to record: the first question that you answer with yes decides")
    for at, (question, name, why) in enumerate(WAYS):
        figure.rect(16, figure.y, 222, 30, "read", round_=6)
        figure.text(127, figure.y + 20, question, anchor="middle")
        figure.text(254, figure.y + 11, "yes", "small dim", anchor="middle")
        figure.arrow(240, figure.y + 15, 270, figure.y + 15)
        figure.box(272, figure.y - 8, WIDTH - 288, [name, why], "la")
        if at + 1 < len(WAYS):
            figure.arrow(127, figure.y + 30, 127, figure.y + 60)
            figure.text(136, figure.y + 49, "no", "small dim")
        figure.y += 62
    figure.y -= 24
    return figure.svg()


def agents() -> str:
    """Two runs of a task, a group, each an episode of three trajectories."""
    figure = Figure("A group of two runs; each run is an episode: a coordinator and the workers that it called")
    found = recorded.two_agents()
    runs = [one for one in found if one.parent_id is None]
    figure.text(16, figure.y + 10, f"group {runs[0].group_id}: runs that are compared", "bold")
    figure.y += 22
    for run in runs:
        children = [one for one in found if one.parent_id == run.id]
        _episode(figure, run, children)
    figure.y -= 8
    return figure.svg()


def _episode(figure: Figure, run: rt.Trajectory, children: list[rt.Trajectory]) -> None:
    figure.rect(16, figure.y, WIDTH - 32, 38 + 52 * len(children), round_=8)
    figure.text(28, figure.y + 20, f"episode of run {run.rollout_index}", "small dim")
    figure.text(WIDTH - 28, figure.y + 20, f"reward {run.reward:g}", "bold", anchor="end")
    top = figure.y + 32
    figure.box(28, top, 120, [run.name, f"{len(run.steps)} steps"], "la")
    for at, child in enumerate(children):
        y = top + 52 * at
        figure.box(222, y, WIDTH - 250, [child.name, f"{len(child.steps)} steps, parent_id: {run.name}"], "lc")
        figure.path(f"M148 {top + 20:g}H184V{y + 20:g}H222" if at else f"M148 {top + 20:g}H222")
    figure.y += 48 + 52 * len(children)
