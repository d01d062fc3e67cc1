"""Rewards and changes that a trajectory passes on to the trajectories opened inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rollout_trace.data import user_values
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
