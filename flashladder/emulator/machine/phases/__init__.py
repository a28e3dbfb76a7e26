"""Phases of mbarriers: who arrived, who waits, and what is told when nothing can move."""
