"""PTX, cubins, SASS and the assembler's log as data, independent of iterations.

Gives counts, register tables and instruction orders to locks, claims and views.
"""
