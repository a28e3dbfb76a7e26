"""Grids measured cell by cell: on one GPU, on many, on Slurm, or on this CPU's emulator.

`plan` turns a grid file into cells. A worker process measures each cell (`workers`), and `records` stores one record
per cell. So no measurement is lost or repeated. `screen.pack` joins the records of a complete sweep into one result
document. verify, gate and report read it like any other result.
"""
