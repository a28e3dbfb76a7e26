"""The page: all that the report knows as one HTML file that needs no network, section by section.

A section is a script and a template of ``analysis/page/``; `sections` finds them, `frame` sets them into one page,
`records` leads each number to its raw samples.
"""
