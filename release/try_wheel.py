"""Build the source archive and the wheel, and try them: `python release/try_wheel.py [--offline]`.

1. Build both into `dist/` with the hatchling of this environment, and check what is in them.
2. Build a wheel from the source archive alone; it must have the same files.
3. Install the wheel into an empty environment, without extras. With `--offline` the packages that
   it needs are those of this environment, and those of the extras are hidden.
4. Run the program of README.md and `isotherm run double-well --smoke` there, in an empty folder.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NEEDED = ("py.typed", "data/registry.toml", "paper/report/page.html", "paper/report/style.mplstyle")
EXTRAS = (
    "sympy polyagamma flax equinox numpyro h5netcdf h5py safetensors zarr orbax mwxml "
    "mwparserfromhell sphinx pytest hypothesis"
).split()
HIDE = f"""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {set(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def call(*words: object, **options: Any) -> str:
    """Run a command; stop with its output if it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Build a source folder with hatchling."""
    before = set(target.glob("*"))
    call(sys.executable, "-m", "hatchling", "build", "-d", target, *kinds, cwd=source)
    return sorted(set(target.glob("*")) - before) or sorted(target.glob("isotherm-*"))


def wheel_files(wheel: Path) -> dict[str, int]:
    """Return the names and checksums of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def check_wheel(wheel: Path) -> None:
    """Stop if a file is missing, or one does not belong there."""
    names = set(wheel_files(wheel))
    missing = [name for name in NEEDED if f"isotherm/{name}" not in names]
    tracked = call("git", "ls-files", "src/isotherm", cwd=ROOT).split()
    wanted = {name.removeprefix("src/") for name in tracked}
    packaged = {name for name in names if ".dist-info/" not in name}
    if missing or (wanted and packaged != wanted):
        raise SystemExit(f"{wheel.name} has other files than src/: {sorted(packaged ^ wanted)}.")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name} has no licence.")


def try_out(wheel: Path, scratch: Path, offline: bool) -> None:
    """Install a wheel into an empty environment and run the README program there."""
    call(sys.executable, "-m", "venv", scratch / "env")
    python = scratch / "env" / "bin" / "python"
    options = ["--no-deps", "--no-index", "--find-links", wheel.parent] if offline else []
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, wheel)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    hide = ""
    if offline:
        environment["PYTHONPATH"] = next(p for p in sys.path if p.endswith("site-packages"))
        hide = HIDE
    where = f"import isotherm; assert {str(scratch)!r} in isotherm.__file__, isotherm.__file__\n"
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run = "import sys; sys.argv = ['isotherm', 'run', 'double-well', '--smoke']\n"
    run += "from isotherm.cli.app import main; main()\n"
    (scratch / "empty").mkdir()
    for text in (program, run):
        text = hide + where + text
        print(call(python, "-c", text, cwd=scratch / "empty", env=environment))


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--offline", action="store_true", help="use no network")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the two files")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    build(ROOT, out, "-t", "sdist", "-t", "wheel")
    wheel, archive = (
        out / f"isotherm-{version}-py3-none-any.whl",
        out / f"isotherm-{version}.tar.gz",
    )
    check_wheel(wheel)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with tarfile.open(archive) as file:
            file.extractall(scratch, filter="data")
        (scratch / "again").mkdir()
        (again,) = build(scratch / f"isotherm-{version}", scratch / "again", "-t", "wheel")
        if wheel_files(again) != wheel_files(wheel):
            raise SystemExit("The source archive builds another wheel.")
        try_out(wheel, scratch, arguments.offline)
    print(f"{wheel.name} and {archive.name} are good.")


if __name__ == "__main__":
    main()
