"""CUDA, PTX and machine code of one kernel, line by line: what each line became, in the terminal and as a page.

`kernel` joins them, `select` finds lines and opcodes in them, `listing` prints, `page` writes HTML, `command` is what
``invoke sass N --line ...``, ``invoke ptx N --line ...`` and ``--page`` call.
"""
