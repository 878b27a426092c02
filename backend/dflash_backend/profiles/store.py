"""All profiles: yours beside the configuration file, those of its ``profile_dirs``, and the shipped ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_backend.config.check import suggestion
from dflash_backend.config.inventory import NAME
from dflash_backend.config.toml import FileError, TomlFile
from dflash_backend.core.errors import ConfigError, UsageError
from dflash_backend.core.inventory import Inventory
from dflash_backend.core.profile import Profile
from dflash_backend.core.text import sanitise
from dflash_backend.profiles.file import ProfileSchema, load_file
from dflash_backend.profiles.resolve import Chain, merge

MAX_DEPTH = 16
"""Profiles that may extend one another in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEntry:
    """One profile file that can be chosen. ``shadows`` are files of the same name that it hides."""

    name: str
    path: Path
    shipped: bool
    shadows: tuple[Path, ...] = ()


def shipped_dir() -> Path:
    """The folder of the shipped profiles: inside the installed package, or in the source tree."""
    installed = Path(__file__).parent / "shipped"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "profiles"


class ProfileStore:
    """Profiles by name. Earlier folders hide later ones; files are read when they are asked for."""

    def __init__(self, folders: Sequence[Path], *, shipped: Path | None = None) -> None:
        self._shipped = shipped or shipped_dir()
        self.folders = (*folders, self._shipped)

    @classmethod
    def of(cls, inventory: Inventory) -> ProfileStore:
        """The store that a configuration describes."""
        beside = [Path(inventory.path).parent / "profiles"] if inventory.path else []
        return cls([*beside, *(Path(folder) for folder in inventory.profile_dirs)])

    @property
    def user_folder(self) -> Path:
        """Where a new profile is written."""
        return self.folders[0]

    def missing_folders(self) -> tuple[Path, ...]:
        """Configured folders that do not exist; the one beside the configuration file need not."""
        return tuple(folder for folder in self.folders[1:] if not folder.is_dir())

    def entries(self) -> tuple[ProfileEntry, ...]:
        """Every profile that can be chosen, sorted by name. Reads folders, not files."""
        found: dict[str, list[Path]] = {}
        for folder in self.folders:
            for path in _files(folder):
                found.setdefault(path.stem, []).append(path)
        return tuple(
            ProfileEntry(
                name=name, path=paths[0], shipped=paths[0].parent == self._shipped, shadows=tuple(paths[1:])
            )
            for name, paths in sorted(found.items())
        )

    def names(self) -> tuple[str, ...]:
        """The names of ``entries``."""
        return tuple(entry.name for entry in self.entries())

    def load(self, name: str) -> Profile:
        """The profile ``name``, resolved.

        Raises UsageError with the nearest name when there is none, FileError when one of its files is wrong.
        """
        for index, folder in enumerate(self.folders):
            path = folder / f"{name}.toml"
            if NAME.fullmatch(name) and path.is_file():
                return self._resolve(path, index)
        raise UsageError(
            f"there is no profile '{sanitise(name, multiline=False, limit=80)}'",
            next_step=suggestion(name, self.names()) or f"looked in {', '.join(map(str, self.folders))}",
        )

    def chain_of(self, profile: Profile) -> Chain:
        """The files that ``profile`` was made from, for messages that name lines."""
        path = Path(profile.origin)
        return self._chain(path, self._layer(path))

    def load_path(self, path: Path) -> Profile:
        """The profile in a file that need not be in any folder of the store; it may extend one that is."""
        return self._resolve(path, self._layer(path))

    def _layer(self, path: Path) -> int:
        parents = [folder.resolve() for folder in self.folders]
        place = path.resolve().parent
        return parents.index(place) if place in parents else -1

    def _resolve(self, path: Path, layer: int) -> Profile:
        return merge(path.stem, self._chain(path, layer), shipped=path.parent == self._shipped)

    def _chain(self, path: Path, layer: int) -> Chain:
        chain: list[TomlFile[ProfileSchema]] = []
        seen: list[Path] = []
        while True:
            file = load_file(path, shipped=path.parent == self._shipped)
            chain.append(file)
            seen.append(path)
            wanted = file.value.extends
            if wanted is None:
                return chain
            following = self._find(wanted, path, layer)
            if following is None:
                hint = suggestion(wanted, (n for n in self.names() if n != path.stem))
                raise _extends_error(
                    file, f"there is no profile '{wanted}' to extend" + (f" ({hint})" if hint else "")
                )
            path, layer = following
            if path in seen:
                names = [p.stem for p in seen[seen.index(path) :]]
                raise _extends_error(
                    file, f"profiles extend one another in a circle: {' → '.join([*names, path.stem])}"
                )
            if len(chain) >= MAX_DEPTH:
                raise _extends_error(file, f"more than {MAX_DEPTH} profiles extend one another")

    def _find(self, name: str, user: Path, layer: int) -> tuple[Path, int] | None:
        """The file that ``extends = name`` means in ``user``: its own name means the file that it hides."""
        for index, folder in enumerate(self.folders):
            path = folder / f"{name}.toml"
            if name == user.stem and index <= layer:
                continue
            if path.is_file():
                return path, index
        return (user, layer) if name == user.stem else None


def _extends_error(file: TomlFile[ProfileSchema], text: str) -> ConfigError:
    return FileError([file.problem(("extends",), text)])


def _files(folder: Path) -> list[Path]:
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if path.suffix == ".toml" and not path.name.startswith(".") and path.is_file()
        ]
    except OSError:
        # Missing or closed to us: missing_folders tells, and the other folders still count.
        return []
