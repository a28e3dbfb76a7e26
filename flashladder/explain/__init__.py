"""A model of one SM that runs a kernel's machine code, and what limits the kernel: docs/explain.md."""
