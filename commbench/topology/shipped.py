"""Descriptions of clusters that come with commbench, by name: `h100-nvlink` is `topologies/h100-nvlink.yaml`."""

from __future__ import annotations

from pathlib import Path

from commbench.errors import UsageError, unknown_name

FOLDER = Path(__file__).parent.parent / "topologies"  # a symlink in a checkout, a folder in an installed copy


def shipped() -> dict[str, Path]:
    """Return the files by their names."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find(name_or_path: str | Path) -> Path:
    """Return the file that a path or a name stands for; a file that is there wins. UsageError where there is none."""
    path = Path(name_or_path)
    if path.exists():
        return path
    text = str(name_or_path)
    if path.suffix or path.name != text:
        raise UsageError(f"a topology is a file, or a name of one that is shipped; {text!r} is not there")
    known = shipped()
    if text not in known:
        raise unknown_name("topology", text, known)
    return known[text]
