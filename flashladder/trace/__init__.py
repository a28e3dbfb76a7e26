"""A kernel's online softmax, step by step: its values after each KV block compared with the expected ones.

S, m, P, l and O are taken from the emulated PTX, found by where they come from, and held against plain PyTorch.
"""
