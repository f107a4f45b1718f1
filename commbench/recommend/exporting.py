"""A plan as files for launchers, schedulers and libraries, in a folder of their own.

    from commbench.recommend.exporting import Settings, export

    done = export(plan, Settings(slurm=(24, 11), cluster=cluster), "out")
    done.files     the names that were written
    done.refused   what cannot be told of this plan, and why

Settings are what is known of the place where the files will be used: versions, the cluster, what a job asks for.

A target is one file of `commbench/recommend/export/`: TITLE and files(plan, settings); one with LIBRARIES is told of
those choices alone that were measured with a library whose name begins so, and one that NAMES_HOSTS has no files where
the job takes other nodes than the plan's. Nothing live is ever written over: not in a
folder that configures Slurm, and no file that is not as an export here left it, which export.json says.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import os
import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from commbench.errors import UsageError
from commbench.recommend.export._settings import NotExported, checked
from commbench.recommend.export._settings import Settings as Settings  # for who exports
from commbench.recommend.plan import NAME, Plan

LEDGER = "export.json"  # the SHA-256 of each file that was written, by its name; while it is replaced, the old one too
LIVE = ("slurm.conf", "slurmdbd.conf", "cgroup.conf", "gres.conf")  # what says that a folder configures Slurm


class Exporter(Protocol):
    """A target, which is a module."""

    TITLE: str  # "Slurm job"

    def files(self, plan: Plan, settings: Settings) -> dict[str, str]:
        """Return the text of each file by its name; raise NotExported where the plan cannot be told, and why."""


@dataclass(frozen=True)
class Export:
    """What became of an export: the files by target, and the reasons of those targets that have none."""

    files: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, str]


@cache
def exporters() -> dict[str, Exporter]:
    """Return the targets by the names of their files."""
    from commbench.recommend import export as folder

    names = sorted(found.name for found in pkgutil.iter_modules(folder.__path__) if not found.name.startswith("_"))
    return {name: cast(Exporter, importlib.import_module(f"{folder.__name__}.{name}")) for name in names}


def texts(plan: Plan, settings: Settings) -> tuple[dict[str, str], Export]:
    """Return the text of every file, and which target it is for."""
    checked(plan)
    made = {NAME: plan.to_json()}
    by_target: dict[str, tuple[str, ...]] = {}
    refused: dict[str, str] = {}
    for name, exporter in exporters().items():
        try:
            if not settings.nodelist and getattr(exporter, "NAMES_HOSTS", False):
                raise NotExported(
                    "no scripts for named hosts: which nodes come is known in the job, where --allocation plans on them"
                )
            found = exporter.files(_of_libraries(plan, getattr(exporter, "LIBRARIES", ())), settings)
        except NotExported as error:
            refused[name] = str(error)
            continue
        assert all(made.get(file, text) == text for file, text in found.items()), name  # those that share one agree
        made |= found
        by_target[name] = tuple(found)
    return made, Export(by_target, refused)


def _of_libraries(plan: Plan, libraries: tuple[str, ...]) -> Plan:
    """Return the plan without choices that were measured with other libraries: a name may mean something else there."""
    if not libraries:
        return plan
    return replace(
        plan, choices=tuple(one for one in plan.choices if not one.library or one.library.startswith(libraries))
    )


def export(plan: Plan, settings: Settings, folder: str | Path) -> Export:
    """Write every file into `folder`, all or none; raise UsageError where that would overwrite what is not ours."""
    made, done = texts(plan, replace(settings, folder=_written(Path(folder).absolute())))
    write(made, folder)
    return done


def write(made: Mapping[str, str], folder: str | Path) -> None:
    """Write files into `folder`, which is made if need be; those of an earlier export there are replaced."""
    place = Path(folder)
    _deny_live(place)
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is a file, and an export is written into a folder: name one")
    ledger = _ledger(place)
    for name in made:
        if not name or name != os.path.basename(name) or name.startswith("."):
            raise UsageError(f"a file of an export has a plain name, not {name[:80]!r}")
        path = place / name
        if os.path.lexists(path) and not _is_as_left(path, ledger.get(name, "")):
            raise UsageError(
                f"{path} is there already and not as an export left it: name another folder, or move the file away"
            )
    if others := _others(place):
        raise UsageError(
            f"an export is written into a folder of its own, and {place} has {others[0]}: name a new or an empty folder"
        )
    stale = [place / name for name in ledger.keys() - made.keys() if _is_as_left(place / name, ledger[name])]
    entries = {name: _digest(text.encode()) for name, text in sorted(made.items())}
    # Until all is in place a file may be the old or the new one: who is killed in between can export again.
    meanwhile = {name: f"{ledger.get(name, '')} {entries.get(name, '')}".strip() for name in {**ledger, **entries}}
    files = [(LEDGER, _json(meanwhile)), *made.items(), (LEDGER, _json(entries))]
    staged: list[tuple[Path, Path]] = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        for number, (name, text) in enumerate(files):  # a disk that is full leaves the old files as they are
            beside = place / f".{name}.{os.getpid()}.{number}"
            staged.append((beside, place / name))
            beside.write_bytes(text.encode())
            beside.chmod(0o755 if text.startswith("#!") else 0o644)
        for beside, path in staged[:-1]:
            os.replace(beside, path)
        for path in stale:  # of a plan that is no more, and would mislead beside the new one
            path.unlink()
        os.replace(*staged[-1])
    except OSError as error:
        raise UsageError(f"{place} cannot be written ({error}): name a folder that can") from None
    finally:
        for beside, _ in staged:
            with suppress(OSError):
                beside.unlink()


def difference(text: str, path: str | Path, name: str) -> str:
    """Return what `text` would change in the file at `path`, as diff -u prints it; empty if nothing."""
    try:
        old = Path(path).read_bytes().decode("utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), name, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _deny_live(folder: Path) -> None:
    real = folder.resolve()
    configured = Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")).resolve().parent
    places = (Path("/etc"), configured)
    if any(real == place or place in real.parents for place in places) or any((real / one).exists() for one in LIVE):
        raise UsageError(f"{folder} holds a configuration that may be in use: export into a folder of its own")


def _written(folder: Path) -> str:
    """Return the folder as it can stand in a file."""
    try:
        return folder.as_posix().encode().decode()
    except UnicodeEncodeError:
        raise UsageError(f"an export's folder has a name in UTF-8, not {str(folder)!a:.80}: name another") from None


def _others(folder: Path) -> list[str]:
    """Return the files of a folder that no export made, without hidden ones, which one that was killed may leave."""
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        return [] if LEDGER in names else names
    return []


def _ledger(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / LEDGER).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {str(name): str(digest) for name, digest in found.items() if name == os.path.basename(name)}
    return {}


def _is_as_left(path: Path, digests: str) -> bool:
    with suppress(OSError):
        return not path.is_symlink() and _digest(path.read_bytes()) in digests.split()
    return False


def _json(entries: Mapping[str, str]) -> str:
    return json.dumps(entries, indent=1) + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
