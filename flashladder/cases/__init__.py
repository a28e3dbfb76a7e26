"""What a launch is given and what it must give back: shapes, layouts, contents, the fp64 reference and its bounds.

The GPU's check, the emulator's, the timer and the sweeps all take their inputs and their rule from here.
"""
