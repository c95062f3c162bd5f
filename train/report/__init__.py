"""This package turns runs and benchmark results into a report to read, print and send."""

import logging

# Warnings about a read-only home or a missing glyph help no reader. Some are logged at import
# already.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
