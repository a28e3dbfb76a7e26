"""This ladder's kernels on the emulator: launch, screen, counter readings and what they agree with, mutation.

`ptxemu` knows PTX and no iteration; here they meet. ``invoke emulate`` is `command`.
"""
