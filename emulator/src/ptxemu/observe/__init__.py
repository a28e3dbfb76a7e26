"""Onlookers of a launch: counters as Nsight Compute's, bank conflicts, races."""
