"""Why a kernel is as fast as it is: a model of one SM that runs its machine code, and the bottleneck.

Takes machine code from `flashladder.machine_code` and what a launch runs of it from `flashladder.emulate`; rates and
latencies are those of ``configs/gpus/``. Nothing in it is fitted to the speed of a kernel: docs/explain.md says more.
"""
