"""Do the committed numbers still hold? Published figures, locks, claims, documents and pages, checked one by one.

`command` runs every check, `verify` looks at one result file, `reproduce` is the main job's second half, and `publish`
lets a sweep into results/ once it is verified.
"""
