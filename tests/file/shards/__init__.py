"""Shards of processes that are killed, in a folder and on an S3 server of this machine."""
