"""This ladder's kernels on the emulator: launch, output, counters compared with a GPU's, mutation tests.

`ptxemu` knows PTX and no iteration; here they meet. ``invoke emulate`` is `command`.
"""
