"""Tuning by successive halving: space, rungs, ladders, packing, the table of candidates and the winner."""
