"""PTX, cubins, SASS and the assembler's log as data. Knows no iteration.

Gives counts, register tables and instruction orders to locks, claims and views.
"""
