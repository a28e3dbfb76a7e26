"""Do the committed numbers hold? Documents, claims, published figures, tables and plots, derived again.

`reproduce` runs every check, `verify` looks at one document or a folder of them, `published` compares figures with
published ones and runs with each other.
"""
