"""Fill a disk of 512 KiB, a tmpfs that only this process sees: `unshare -rm python full_disk.py FOLDER`."""

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
    """Make draws of 400 bytes each, unless told otherwise, and as many of statistics."""
    return isotherm.sample(
        jax.random.key(0),
        SAMPLER,
        jnp.zeros(size),
        isotherm.no_batches(),
        num_draws=num_draws,
        checkpoint=folder,
        progress=False,
    )


def failure(call, *arguments):
    """Tell how a call fails."""
    try:
        call(*arguments)
    except OSError as error:
        return str(error)
    return "it did not"


def content(folder):
    """Give all bytes below a folder, with the numbers of the files: one that is written again has another."""
    return {p: (p.stat().st_ino, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def main(disk):
    """Overflow the disk by a checkpoint and by runs as files; make it bigger, and go on."""
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "size=512k", "tmpfs", disk], check=True)
    told, whole, short = {}, run(None, 2000), run(None, 20)
    run(disk / "cut", 20)
    before = content(disk)
    told["checkpoint"] = failure(run, disk / "cut", 2000)
    told["intact"] = before.items() <= content(disk).items()
    for suffix in (".nc", ".zarr", ".safetensors"):
        path = disk / f"run{suffix}"
        isotherm.save_run(short, path)
        before = content(disk)
        told[suffix] = failure(isotherm.save_run, whole, path)
        told["intact"] &= content(disk) == before and isotherm.load_run(path).num_draws == 20
        subprocess.run(["rm", "-r", path], check=True)
    told["drafts"] = [p.name for p in disk.rglob(".draft-*")]
    subprocess.run([*mount, "remount,size=8m", "tmpfs", disk], check=True)
    pages = {p: found for p, found in content(disk).items() if p.name.startswith("page")}
    draws = run(disk / "cut", 2000).draws
    told["went_on"] = len(pages) == 1 and pages.items() <= content(disk).items()
    told["same_bits"] = bool(np.array_equal(draws, whole.draws))
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
