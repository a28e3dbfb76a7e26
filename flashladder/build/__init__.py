"""From an iteration to an importable wheel: a store of compiled kernels, a scheduler, native libraries, packages.

What was compiled once is never compiled again; a build whose inputs did not change does nothing.
``python -m flashladder.build 7`` is `command`.
"""
