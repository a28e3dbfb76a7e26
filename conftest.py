"""Makes `tests` the namespace of both folders of that name, before pytest takes the first one alone for it."""

import tests  # noqa: F401 - its import is what matters
