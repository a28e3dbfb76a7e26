"""A kernel's online softmax, step by step: what it holds after each KV block beside what it should, and where it errs.

S, m, P, l and O are taken from the emulated PTX, found by where they come from, and held against plain PyTorch.
"""
