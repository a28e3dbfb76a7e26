"""Are the committed numbers right? Recomputes documents, claims, tables and plots, and compares with published figures.

`reproduce` runs every check. `verify` checks one document or a folder of them. `published` compares our figures with
the published ones, and one of our runs with another.
"""
