"""A small pure Python wheel, made without a network, such as a user might want beside the locked packages."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, code: str = "", *requires: str) -> Path:
    """Version 1.0 of a package of one module; `requires` are pip's requirements, such as `torch` or `numpy<1`."""
    needed = "".join(f"Requires-Dist: {package}\n" for package in requires)
    files = {
        f"{name}.py": code,
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    record = f"{name}-1.0.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in files.items():
            wheel.writestr(place, text)
        wheel.writestr(record, "".join(f"{place},,\n" for place in [*files, record]))
    path.chmod(0o644)
    return path
