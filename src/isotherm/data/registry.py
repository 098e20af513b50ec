"""Where the data are, and whether they are what they should be.

`registry.toml` lists every file of every dataset with its checksum and its public sources. A
dataset called NAME lives in a folder NAME under a *data folder*; `locate` finds it, `verify`
checks it, `fetch` downloads what is missing.
"""

import gzip
import hashlib
import os
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

State = Literal["ok", "missing", "wrong checksum"]
PathLike = str | os.PathLike[str]


class File(NamedTuple):
    """A file; its size and checksum are of the unpacked content, if it is kept gzipped."""

    name: str
    bytes: int
    sha256: str
    urls: tuple[str, ...] = ()
    sha256_gz: str = ""
    """Checksum of the download, where a source serves `name + ".gz"`."""


class Dataset(NamedTuple):
    """Files that belong together."""

    name: str
    title: str
    licence: str
    files: tuple[File, ...]


class Checked(NamedTuple):
    """What `verify` found out about a file."""

    file: File
    path: Path | None
    state: State


class DataNotFoundError(FileNotFoundError):
    """A dataset is not in any of the places where it could be."""


class ChecksumError(ValueError):
    """A download is not the file that was asked for."""


@cache
def datasets() -> dict[str, Dataset]:
    """Read the registry.

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
    """Look a dataset up, or suggest the nearest name there is."""
    known = datasets()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f": did you mean `{near[0]}`?" if near else "."
        listed = ", ".join(f"`{word}`" for word in known)
        raise ValueError(f"Unknown dataset `{name}`{hint} Known are {listed}.")
    return known[name]


def data_folders(data_dir: PathLike | None = None) -> list[Path]:
    """List the data folders, in the order in which they are searched.

    Just `data_dir`, if it is given. Otherwise `$ISOTHERM_DATA`, `../shared/data` beside the current
    folder and beside a source checkout where these exist, and the user's cache.
    """
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    places = [Path(place).expanduser() for place in _named_folder()]
    checkout = Path(__file__).resolve().parents[3]
    for base in (Path.cwd(), *([checkout] if (checkout / "pyproject.toml").is_file() else [])):
        shared = base.parent / "shared" / "data"
        if shared.is_dir() and shared not in places:
            places.append(shared)
    return [*places, _user_cache()]


def _named_folder() -> list[str]:
    place = os.environ.get("ISOTHERM_DATA", "")
    return [place] if place else []


def _user_cache() -> Path:
    import pooch

    return Path(pooch.os_cache("isotherm"))


def locate(
    name: str, data_dir: PathLike | None = None, files: Iterable[str] | None = None
) -> dict[str, Path]:
    """Find the files of a dataset; checksums are left to `verify`.

    Parameters
    ----------
    name
        Of the dataset.
    data_dir
        Where to look; by default in all of `data_folders()`.
    files
        Which of its files are needed; by default all.

    Returns
    -------
    The path of each file by its registered name; the path may end in `.gz`.

    Raises
    ------
    DataNotFoundError
        A `FileNotFoundError` that says where it looked and how to get the data.
    """
    dataset, folders = find(name), data_folders(data_dir)
    known = [file.name for file in dataset.files]
    wanted = known if files is None else list(files)
    if strangers := [word for word in wanted if word not in known]:
        raise ValueError(f"`{name}` has no file `{strangers[0]}`, only {', '.join(known)}.")
    found = present(name, data_dir)
    if missing := [f"`{name}/{word}`" for word in wanted if word not in found]:
        looked = ", ".join(f"`{folder}`" for folder in folders)
        raise DataNotFoundError(
            f"Found no {', '.join(missing)} (or .gz) in {looked}. Get it with `isotherm data fetch {name}`, "
            "or say where it is with `--data-dir` or ISOTHERM_DATA."
        )
    return {word: found[word] for word in wanted}


def present(name: str, data_dir: PathLike | None = None) -> dict[str, Path]:
    """Find those files of a dataset that are there; the path of each by its registered name."""
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
    """Check the SHA-256 of every file of a dataset: `ok`, `missing` or `wrong checksum`."""
    paths = present(name, data_dir)
    return [_check(file, paths.get(file.name)) for file in find(name).files]


def _check(file: File, path: Path | None) -> Checked:
    if path is None:
        return Checked(file, None, "missing")
    return Checked(file, path, "ok" if _sha256(path) == file.sha256 else "wrong checksum")


def _sha256(path: Path) -> str | None:
    """Digest what the file holds, unpacked if it is gzipped; None if it cannot be unpacked."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return None


def fetch(name: str, data_dir: PathLike | None = None, *, progress: Any = False) -> list[Checked]:
    """Download the files of a dataset that are missing or wrong, and verify them all.

    Parameters
    ----------
    name
        Of the dataset.
    data_dir
        The data folder to look in and to download to; by default it looks in `data_folders()` and
        downloads to `$ISOTHERM_DATA` or the user's cache.
    progress
        A progress bar as pooch takes it.

    Raises
    ------
    ChecksumError
        A download has another checksum than it should have; it was thrown away.
    OSError
        No source of a file answers, or the file has none.
    """
    wrong = [item.file for item in verify(name, data_dir) if item.state != "ok"]
    folder = download_folder(name, data_dir)
    for file in wrong:
        if file.urls:
            _download(file, folder, progress)
    if homeless := [file.name for file in wrong if not file.urls]:
        raise DataNotFoundError(
            f"{', '.join(f'`{word}`' for word in homeless)} of `{name}` cannot be downloaded: there "
            f"is no public source. Copy from where you have it to `{folder}`."
        )
    return verify(name, data_dir)


def download_folder(name: str, data_dir: PathLike | None = None) -> Path:
    """Say where `fetch` puts the files of a dataset."""
    if data_dir is None:
        data_dir = next(iter(_named_folder()), None) or _user_cache()
    return Path(data_dir).expanduser() / name


def _download(file: File, folder: Path, progress: Any) -> None:
    """Try the sources in turn; pooch moves a download into place when its checksum is right."""
    import pooch

    downloader: Any = pooch.HTTPDownloader(progressbar=progress, timeout=30)
    failures: list[Exception] = []
    for url in file.urls:
        packed = url.endswith(".gz")
        try:
            pooch.retrieve(
                url,
                f"sha256:{file.sha256_gz if packed else file.sha256}",
                fname=f"{file.name}.gz" if packed else file.name,
                path=folder,
                downloader=downloader,
            )
            return
        except OSError as error:  # requests' exceptions are among them
            failures.append(OSError(f"{url} does not answer ({type(error).__name__})"))
        except ValueError:
            failures.append(ChecksumError(f"{url} has another checksum than registered"))
    sentence = f"Could not fetch `{file.name}`: {'; '.join(map(str, failures))}."
    only_wrong = all(isinstance(failure, ChecksumError) for failure in failures)
    raise (ChecksumError if only_wrong else OSError)(sentence)
