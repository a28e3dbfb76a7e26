"""Grids measured cell by cell: on one GPU, on many, on Slurm, or on this CPU's emulator.

A grid file becomes a plan of cells (`plan`); each is measured in a worker process (`workers`) and leaves one record
(`records`), so that nothing that was measured is lost or measured twice. A complete sweep is packed into one result
document (`pack`), which verify, gate and report read like any other.
"""
