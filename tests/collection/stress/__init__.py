"""What the tests of many rollouts share: a server in a process of its own, faults, agents, and the account of all."""
