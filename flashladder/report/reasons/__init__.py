"""The reasons of each step: prose of iterations/reasons/NN.md, whose every figure is a call over committed data.

Takes committed results, locks, counts and published figures; gives the section of reasons to the notes
(``python analysis/render_notes.py``). A figure typed by hand is an error, and so is a sentence whose data turned round.
"""
