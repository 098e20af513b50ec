"""Fill a private tmpfs of 512 KiB: `unshare -rm python full_disk.py FOLDER`."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import isotherm

SAMPLER = isotherm.sgld(lambda x, batch: -x, 0.1)


def run(folder, num_draws, size=100):
    """Make draws of 400 bytes each by default, and as many bytes of statistics."""
    return isotherm.sample(
        jax.random.key(0),
        SAMPLER,
        jnp.zeros(size),
        isotherm.no_batches(),
        num_draws=num_draws,
        checkpoint=folder,
        progress=False,
        max_memory=float("inf"),  # otherwise the run is refused before it fills the disk
    )


def failure(call, *arguments):
    """Return the message of the error that a call raises."""
    try:
        call(*arguments)
    except OSError as error:
        return str(error)
    return "no error"


def content(folder):
    """Return inode and bytes of all files in a folder; rewriting a file changes its inode."""
    return {p: (p.stat().st_ino, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def main(disk):
    """Fill the disk with a checkpoint and with saved runs; enlarge it, and resume."""
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "size=512k", "tmpfs", disk], check=True)
    report, whole, short = {}, run(None, 2000), run(None, 20)
    run(disk / "cut", 20)
    before = content(disk)
    report["checkpoint"] = failure(run, disk / "cut", 2000)
    report["intact"] = before.items() <= content(disk).items()
    for suffix in (".nc", ".zarr", ".safetensors"):
        path = disk / f"run{suffix}"
        isotherm.save_run(short, path)
        before = content(disk)
        report[suffix] = failure(isotherm.save_run, whole, path)
        report["intact"] &= content(disk) == before and isotherm.load_run(path).num_draws == 20
        subprocess.run(["rm", "-r", path], check=True)
    report["drafts"] = [p.name for p in disk.rglob(".draft-*")]
    subprocess.run([*mount, "remount,size=8m", "tmpfs", disk], check=True)
    pages = {p: entry for p, entry in content(disk).items() if p.name.startswith("page")}
    draws = run(disk / "cut", 2000).draws
    report["resumed"] = len(pages) == 1 and pages.items() <= content(disk).items()
    report["same_bits"] = bool(np.array_equal(draws, whole.draws))
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
