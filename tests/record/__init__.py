"""The recorder's own parts: the journal and its recovery."""
