"""The ladder for reading: list, show, diff, and what the assembler made of a kernel."""
