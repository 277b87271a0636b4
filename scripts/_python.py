"""Stops, in one line, under a Python that cannot run the course.

Imported before anything else by lab.py and test.py, so it keeps to what every Python 3 since 3.6 can read.
"""

import os
import sys

OLDEST, NEWEST = (3, 10), (3, 14)


def complaint(version, platform, path):
    """The line that says why this Python or system will not do; None if it will.

    version: (major, minor); platform: as sys.platform; path: folders where a better Python is looked for.
    """
    if platform == "win32":
        return "DDP Lab does not run on Windows itself: install WSL (wsl --install), run this command in it."
    if OLDEST <= version <= NEWEST:
        return None
    oldest, newest, this = (".".join(map(str, v)) for v in (OLDEST, NEWEST, version))
    line = f"DDP Lab needs Python {oldest} to {newest}; this is Python {this}."
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if any(os.access(os.path.join(folder, name), os.X_OK) for folder in path):
            return f"{line} There is a {name} here: use that in place of python3."
    return line + " Install a newer one, for example from your system's packages, and call it by name."


_line = complaint(tuple(sys.version_info[:2]), sys.platform, os.environ.get("PATH", "").split(os.pathsep))
if _line:
    sys.stderr.write(_line + "\n")
    sys.exit(2)
