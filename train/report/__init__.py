"""This package turns runs and benchmark results into a report to read, print and send."""

import logging

# A home that is read-only, a letter that no font has: nothing that a reader can act on. Said at import already.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
