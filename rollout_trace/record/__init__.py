"""A run while it goes on: its calls, which trajectory they belong to, frames of frameworks, recordings."""
