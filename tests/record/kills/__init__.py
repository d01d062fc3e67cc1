"""Processes that are killed while they record, write and recover."""
