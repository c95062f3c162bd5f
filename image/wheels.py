"""From pip's report to the wheels that it installed, one line for each as in a lock."""

import json
import sys
from pathlib import Path


def line(wheel: dict) -> str:
    """`name==version --hash=sha256:...`"""
    package, archive = wheel["metadata"], wheel["download_info"]["archive_info"]
    return f"{package['name'].lower()}=={package['version']} --hash=sha256:{archive['hashes']['sha256']}"


report = json.loads(Path(sys.argv[1]).read_text())
print(*sorted(map(line, report["install"])), sep="\n")
