"""A folder as it is, to be compared with what it is later."""

from pathlib import Path


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time of the last change in nanoseconds, and content of all that is in a folder, and of itself."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return found
