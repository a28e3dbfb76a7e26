"""Inputs and expected outputs of a launch: shapes, layouts, contents, the fp64 reference and its bounds."""
