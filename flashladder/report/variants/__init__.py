"""Ablations and toolchains: what a change or a compiler is worth, its tables and its bars."""
