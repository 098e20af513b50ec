"""Find, verify and download the files of the datasets.

`registry.toml` lists every file of every dataset with its checksum and its public sources. The
files of a dataset NAME are in a folder NAME of a *data folder*: `locate` finds them, `verify`
checks their checksums, `fetch` downloads what is missing or wrong. `open_bytes` reads them, gzipped
or not.
"""

import gzip
import hashlib
import os
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

from isotherm.io.untrusted import check_regular

State = Literal["ok", "missing", "wrong checksum"]
PathLike = str | os.PathLike[str]
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
"""Exceptions raised while reading a damaged or truncated gzip file."""


class File(NamedTuple):
    """A file of a dataset; `bytes` and `sha256` are those of the uncompressed content."""

    name: str
    bytes: int
    sha256: str
    urls: tuple[str, ...] = ()
    sha256_gz: str = ""
    """Checksum of the compressed download, where a source serves `name + ".gz"`."""


class Dataset(NamedTuple):
    """A named set of files."""

    name: str
    title: str
    licence: str
    files: tuple[File, ...]


class Checked(NamedTuple):
    """State of one file, as `verify` returns it."""

    file: File
    path: Path | None
    state: State


class DataNotFoundError(FileNotFoundError):
    """Files of a dataset are in none of the data folders, or have no public source."""


class ChecksumError(ValueError):
    """The checksum of a download differs from the registered one."""


@cache
def datasets() -> dict[str, Dataset]:
    """Return all registered datasets by name.

    Examples
    --------
    >>> [file.name for file in datasets()["a9a"].files]
    ['a9a', 'a9a.t']
    """
    text = resources.files("isotherm.data").joinpath("registry.toml").read_text(encoding="utf-8")
    return {
        name: Dataset(name, entry["title"], entry["licence"], tuple(_files(entry["files"])))
        for name, entry in tomllib.loads(text).items()
    }


def _files(entries: Iterable[dict[str, Any]]) -> Iterator[File]:
    for entry in entries:
        yield File(**{**entry, "urls": tuple(entry.get("urls", ()))})


def find(name: str) -> Dataset:
    """Return the dataset called `name`; raise `ValueError` with the closest name if unknown."""
    known = datasets()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f": did you mean `{near[0]}`?" if near else "."
        listed = ", ".join(f"`{word}`" for word in known)
        raise ValueError(f"Unknown dataset `{name}`{hint} Datasets: {listed}.")
    return known[name]


_only: ContextVar[PathLike | None] = ContextVar("_only", default=None)


@contextmanager
def search_only(data_dir: PathLike | None) -> Iterator[None]:
    """Search this data folder only, inside the context; `None` changes nothing."""
    token = _only.set(_only.get() if data_dir is None else data_dir)
    try:
        yield
    finally:
        _only.reset(token)


def data_folders(data_dir: PathLike | None = None) -> list[Path]:
    """Return the data folders, in the order in which they are searched.

    Only `data_dir`, or that of `search_only`, if it is given. Otherwise `$ISOTHERM_DATA`;
    `../shared/data`, relative to the current folder and to a source checkout, where it exists; and
    the user's cache.
    """
    data_dir = _only.get() if data_dir is None else data_dir
    if data_dir is not None:
        return [_checked_folder(data_dir)]
    folders = [Path(folder).expanduser() for folder in _environment_folder()]
    checkout = Path(__file__).resolve().parents[3]
    for base in (Path.cwd(), *([checkout] if (checkout / "pyproject.toml").is_file() else [])):
        shared = base.parent / "shared" / "data"
        if shared.is_dir() and shared not in folders:
            folders.append(shared)
    return [*folders, _user_cache()]


def _checked_folder(data_dir: PathLike) -> Path:
    """Return the path of a data folder, which need not exist; raise an error if it is a file."""
    folder = Path(data_dir).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{folder}` is a file, not a folder with data.")
    return folder


def _environment_folder() -> list[str]:
    folder = os.environ.get("ISOTHERM_DATA", "")
    return [folder] if folder else []


def _user_cache() -> Path:
    import pooch

    return Path(pooch.os_cache("isotherm"))


def locate(
    name: str, data_dir: PathLike | None = None, files: Iterable[str] | None = None
) -> dict[str, Path]:
    """Find the files of a dataset, without checking their checksums (see `verify`).

    Parameters
    ----------
    name
        Name of the dataset.
    data_dir
        The only folder to search; by default all of `data_folders()`.
    files
        Names of the files needed; by default all.

    Returns
    -------
    The path of each file by its registered name; a path may end in `.gz`.

    Raises
    ------
    DataNotFoundError
        A `FileNotFoundError` that lists the folders searched and says how to get the data.
    """
    dataset, folders = find(name), data_folders(data_dir)
    known = {file.name: file for file in dataset.files}
    wanted = list(known) if files is None else list(files)
    if unknown := [word for word in wanted if word not in known]:
        raise ValueError(f"`{name}` has no file `{unknown[0]}`, only {', '.join(known)}.")
    paths = present(name, data_dir)
    if missing := [known[word] for word in wanted if word not in paths]:
        names = ", ".join(f"`{name}/{file.name}`" for file in missing)
        searched = ", ".join(f"`{folder}`" for folder in folders)
        hint = "There is no public source. If you have a copy,"
        if any(file.urls for file in missing):
            hint = f"Download with `isotherm data fetch {name}`, or"
        raise DataNotFoundError(
            f"Did not find {names} (or .gz) in {searched}. {hint} set the environment variable "
            f"ISOTHERM_DATA, or on the command line `--data-dir`, to the folder that contains "
            f"`{name}`."
        )
    return {word: paths[word] for word in wanted}


def present(name: str, data_dir: PathLike | None = None) -> dict[str, Path]:
    """Return the paths of those files of a dataset that exist, by their registered names."""
    folders = data_folders(data_dir)
    paths = {file.name: _find_file(folders, name, file.name) for file in find(name).files}
    return {word: path for word, path in paths.items() if path is not None}


def _find_file(folders: Iterable[Path], dataset: str, name: str) -> Path | None:
    for folder in folders:
        for path in (folder / dataset / name, folder / dataset / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def verify(name: str, data_dir: PathLike | None = None) -> list[Checked]:
    """Check the SHA-256 of every file of a dataset.

    Returns
    -------
    Per file, its path and its state: `ok`, `missing` or `wrong checksum`.
    """
    paths = present(name, data_dir)
    return [_check(file, paths.get(file.name)) for file in find(name).files]


def _check(file: File, path: Path | None) -> Checked:
    if path is None:
        return Checked(file, None, "missing")
    return Checked(file, path, "ok" if _sha256(path) == file.sha256 else "wrong checksum")


def open_bytes(path: PathLike) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in `.gz`; pipes are refused."""
    check_regular(path)
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    return open(path, "rb")


def _sha256(path: Path) -> str | None:
    """Return the checksum of the uncompressed content; None if it cannot be decompressed."""
    with open_bytes(path) as stream:
        try:
            return hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
        except GZIP_ERRORS:
            return None


def fetch(name: str, data_dir: PathLike | None = None, *, progress: Any = False) -> list[Checked]:
    """Download the files of a dataset that are missing or have a wrong checksum, then verify all.

    Parameters
    ----------
    name
        Name of the dataset.
    data_dir
        The data folder to search and to download to; by default all of `data_folders()` are
        searched, and files are downloaded to `$ISOTHERM_DATA` or the user's cache.
    progress
        False, True or a progress bar, as for pooch's downloaders.

    Raises
    ------
    ChecksumError
        A download has a wrong checksum; it was deleted.
    OSError
        All sources of a file failed, or it has no public source.
    """
    wrong = [item.file for item in verify(name, data_dir) if item.state != "ok"]
    folder = download_folder(name, data_dir)
    for file in wrong:
        if file.urls:
            _download(file, folder, progress)
    if unavailable := [file.name for file in wrong if not file.urls]:
        raise DataNotFoundError(
            f"{', '.join(f'`{word}`' for word in unavailable)} of `{name}` cannot be downloaded: "
            f"there is no public source. If you have a copy, put it into `{folder}`."
        )
    return verify(name, data_dir)


def download_folder(name: str, data_dir: PathLike | None = None) -> Path:
    """Return the folder that `fetch` downloads the files of a dataset to."""
    if data_dir is None:
        data_dir = next(iter(_environment_folder()), None) or _user_cache()
    return _checked_folder(data_dir) / name


def _download(file: File, folder: Path, progress: Any) -> None:
    """Download from the first source that works; pooch deletes a file with a wrong checksum."""
    import pooch

    downloader: Any = pooch.HTTPDownloader(progressbar=progress, timeout=30)
    failures: list[Exception] = []
    for url in file.urls:
        gzipped = url.endswith(".gz")
        try:
            pooch.retrieve(
                url,
                f"sha256:{file.sha256_gz if gzipped else file.sha256}",
                fname=f"{file.name}.gz" if gzipped else file.name,
                path=folder,
                downloader=downloader,
            )
            return
        except OSError as error:  # includes the exceptions of requests
            failures.append(OSError(f"{url} failed ({type(error).__name__})"))
        except ValueError:
            failures.append(ChecksumError(f"{url} has a wrong checksum"))
    message = f"Could not download `{file.name}`: {'; '.join(map(str, failures))}."
    all_checksums = all(isinstance(failure, ChecksumError) for failure in failures)
    raise (ChecksumError if all_checksums else OSError)(message)
