"""What a launch is given and what it must give back: shapes, layouts, contents, the fp64 reference and its bounds."""
