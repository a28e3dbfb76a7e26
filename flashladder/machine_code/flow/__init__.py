"""The control flow of a kernel's machine code: blocks, dominators, loops, regions, and how often each block runs.

Takes what `flashladder.machine_code.sass` read; gives per-KV-block counts to views and to the model of the bottleneck.
"""
