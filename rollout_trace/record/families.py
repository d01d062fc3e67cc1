"""Rewards and changes that a trajectory passes on to the trajectories opened inside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollout_trace.data import user_values
from rollout_trace.data.episodes import episode_of, lineage
from rollout_trace.file.addresses import is_address
from rollout_trace.record import ancestry
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


def give_to_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Sets a reward, or its part called ``name``, on the trajectories opened inside, at any depth.

    Closed ones get it now, the others when they close.
    """
    state = state_of(trajectory)
    if state is None:
        return
    state.child_rewards[name] = (value, trajectory.id)
    for child in trajectory._children:
        _inherit_reward(child, name, value, trajectory.id)


def change(family: list[Trajectory], how: Callable[[Trajectory], object]) -> None:
    """Has a function change each of these trajectories when its steps are final, before it is written.

    At once where they are. Those that were opened inside, and close later, are changed too.
    """
    for one in family:
        state = state_of(one)
        if state is not None:
            state.for_inside.append(how)
        if state is None or not state.add_completion(how):
            how(one)


def inherit(family: list[Trajectory], parent: Trajectory) -> None:
    """Gives a closed trajectory, and those inside it, the rewards and changes that ``parent`` has for its children."""
    state = state_of(parent)
    if state is None:
        return
    for name, (value, giver_id) in state.child_rewards.items():
        for one in family:
            _inherit_reward(one, name, value, giver_id)
    for how in state.for_inside:
        change(family, how)


def _inherit_reward(child: Trajectory, name: str | None, value: float, giver_id: str) -> None:
    state = state_of(child)
    if state is None:
        return
    # The nearest outer trajectory wins: a later value replaces only one from the same giver.
    passed_on = state.child_rewards.get(name)
    if passed_on is None or passed_on[1] == giver_id:
        state.child_rewards[name] = (value, giver_id)
    current = child.reward if name is None else (child.rewards or {}).get(name)
    # Kept: a reward set on the child itself, also over an inherited one, or inherited from a nearer trajectory.
    if current is not None and state.inherited_rewards.get(name) != (current, giver_id):
        return
    state.inherited_rewards[name] = (value, giver_id)
    # Past `Trajectory.__setattr__`: it would warn of a reward on a closed trajectory without calls.
    if name is None:
        object.__setattr__(child, "reward", value)
    else:
        rewards = user_values.named_numbers({**(child.rewards or {}), name: value}, user_values.Rewards)
        object.__setattr__(child, "rewards", rewards)
    if state.journal is not None:
        state.journal.was_set("reward" if name is None else "rewards", value)


class Elsewhere:
    """What a recording settles at its end with other processes, which write trajectories of the same episodes.

    Args:
        output: its file or folder; None, or an address, at which nothing can be noted: it settles nothing.
    """

    def __init__(self, output: str | None) -> None:
        self._output = None if output is None or is_address(output) else output
        self.started: set[str] = set()
        """Episodes in which a process was started."""
        self._rewards: dict[str, dict[str | None, float]] = {}
        """By the id of the trajectory that gives them, and the name of the part."""
        self._rewarded: set[str] = set()
        """Their episodes."""
        self._size: int | None = None
        """Of the file when the recording began; None where no trajectory of another process is around it."""
        self._around: set[str] = set()
        """Episodes of trajectories that were opened inside those of another process."""
        if self._output is not None and ancestry.ancestor() is not None and not os.path.isdir(self._output):
            self._size = os.path.getsize(self._output) if os.path.exists(self._output) else 0

    def add(self, family: list[Trajectory]) -> None:
        """Takes closed trajectories that are to be written."""
        if self._size is not None and family[0].parent_id is not None:
            self._around.add(episode_of(family[0]))
        for one in family:
            state = state_of(one)
            if state is not None and state.child_rewards and episode_of(one) in self.started:
                given = {name: value for name, (value, giver) in state.child_rewards.items() if giver == one.id}
                self._rewards[one.id] = given
                self._rewarded.add(episode_of(one))

    def settle(self) -> None:
        """Notes in the output what follows from the trajectories of the other processes that are written by now.

        Raises:
            WriteError, OSError: the output cannot be read, or the notes cannot be written.
        """
        # Not of a device.
        if self._output is None or not (os.path.isfile(self._output) or os.path.isdir(self._output)):
            return
        if self._around and self._size is not None:
            # Imported on use, here and below: most recordings need no reader.
            from rollout_trace.file.annotate import attempts_in, leave_out

            # Who started this process has perhaps written since that the attempt was thrown away. What it wrote
            # before it looked itself is seen here; what is written after that, it sees.
            thrown = attempts_in(self._output, since=self._size).thrown
            leave_out(self._output, thrown & self._around)
        if self._rewarded:
            self._give_rewards(self._output)

    def _give_rewards(self, output: str) -> None:
        """Notes rewards for trajectories that have no such one of their own; the innermost giver's counts."""
        from rollout_trace.file.annotate import append_notes, checked_note, of_episodes

        found = [(file, one.id, one.parent_id, one.reward, one.rewards or {})
                 for file, one in of_episodes(output, self._rewarded)]  # fmt: skip
        parents = {own: parent for _, own, parent, _, _ in found}
        notes: dict[str, list[dict[str, Any]]] = {}
        for file, own, _, reward, rewards in found:
            given: dict[str | None, float] = {}
            for giver in lineage(own, parents):
                given = {**(self._rewards.get(giver, {}) if giver != own else {}), **given}
            parts = {name: value for name, value in given.items() if name is not None and name not in rewards}
            whole = given.get(None) if reward is None else None
            if parts or whole is not None:
                notes.setdefault(file, []).append(checked_note(own, {"reward": whole, "rewards": parts}))
        for file, of_file in notes.items():
            append_notes(file, of_file)
