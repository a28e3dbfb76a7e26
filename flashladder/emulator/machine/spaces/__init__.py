"""Shared memory as a block and a cluster see it."""
