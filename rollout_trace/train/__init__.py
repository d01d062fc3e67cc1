"""What a trainer needs of trajectories: sequences, drift, checks, groups, advantages, ids made from text."""
