"""A checkpoint of somebody else: nothing outside its folder is read, and no size is believed."""

import io
import json
import os
import zipfile
from hashlib import sha256

import numpy as np
import pytest
from numpy.lib import format as npy

from fault_scenarios import load_run_state, run_state
from isotherm.io import npz
from isotherm.io.untrusted import Damaged, inside, read_json
from isotherm.loop.checkpoint import Checkpoints


def sealed(path, content):
    """Write the document of a state with a correct checksum, as an attacker would."""
    content.pop("sha256", None)
    seal = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "sha256": seal}))


def signed(path, name):
    return {
        "name": name,
        "bytes": path.stat().st_size,
        "sha256": sha256(path.read_bytes()).hexdigest(),
    }


def huge_header(path):
    """An npz file of a few bytes whose header declares 10^12 numbers."""
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2, 5 * 10**11, 3)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("leaf0.npy", header.getvalue() + bytes(64))
        archive.writestr("leaf1.npy", header.getvalue() + bytes(64))


def bomb(path):
    """Compressed zeros: a gigabyte in a megabyte."""
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2, 10**6, 3)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("leaf0.npy", header.getvalue() + bytes(48 * 10**6))
        archive.writestr("leaf1.npy", header.getvalue() + bytes(48 * 10**6))


def forge_a_name(folder, content):
    outside = folder.parent / "page-00000.npz"
    outside.write_bytes((folder / "page-00000.npz").read_bytes())
    content["pages"][0]["name"] = "../page-00000.npz"


def forge_an_absolute_name(folder, content):
    content["pages"][0]["name"] = str(folder / "page-00000.npz")


def forge_the_name_of_the_state(folder, content):
    outside = folder.parent / "state-00000.npz"
    outside.write_bytes((folder / "state-00000.npz").read_bytes())
    content["state"]["name"] = "../state-00000.npz"


def link_a_page(folder, content):
    outside = folder.parent / "outside.npz"
    os.replace(folder / "page-00000.npz", outside)
    (folder / "page-00000.npz").symlink_to(outside)


def link_the_state(folder, content):
    outside = folder.parent / "outside.npz"
    os.replace(folder / "state-00000.npz", outside)
    (folder / "state-00000.npz").symlink_to(outside)


def make_a_pipe(folder, content):
    (folder / "page-00000.npz").unlink()
    os.mkfifo(folder / "page-00000.npz")


def declare_too_much(folder, content):
    huge_header(folder / "page-00000.npz")
    content["pages"][0] = signed(folder / "page-00000.npz", "page-00000.npz")


def compress_zeros(folder, content):
    bomb(folder / "page-00000.npz")
    content["pages"][0] = signed(folder / "page-00000.npz", "page-00000.npz")


def store_an_object(folder, content):
    with zipfile.ZipFile(folder / "page-00000.npz", "w") as archive:
        for name in ("leaf0", "leaf1"):
            stream = io.BytesIO()
            npy.write_array(stream, np.array([{}], object), allow_pickle=True)
            archive.writestr(f"{name}.npy", stream.getvalue())
    content["pages"][0] = signed(folder / "page-00000.npz", "page-00000.npz")


def announce_other_draws(folder, content):
    content["kept"] = 10**9


def change_types(folder, content):
    content["pages"] = {"name": 1}


def change_types_of_a_page(folder, content):
    content["pages"] = [7]


def leave_out_the_state(folder, content):
    del content["state"]


def change_rollbacks(folder, content):
    content["rollbacks"] = [[1, 2]]


ATTACKS = [
    forge_a_name,
    forge_an_absolute_name,
    forge_the_name_of_the_state,
    link_a_page,
    link_the_state,
    make_a_pipe,
    declare_too_much,
    compress_zeros,
    store_an_object,
    announce_other_draws,
    change_types,
    change_types_of_a_page,
    leave_out_the_state,
    change_rollbacks,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_checkpoint_is_refused_as_damage(tmp_path, attack):
    folder = tmp_path / "run"
    Checkpoints(folder, {"seed": 1}).save(run_state(0))
    path = folder / "state-00000.json"
    content = json.loads(path.read_text())
    attack(folder, content)
    sealed(path, content)
    with pytest.raises(ValueError, match=r"No checkpoint in .* is intact") as caught:
        load_run_state(Checkpoints(folder, {"seed": 1}))
    assert "MemoryError" not in str(caught.value)


def test_foreign_files_in_the_folder_do_not_matter(tmp_path):
    folder = tmp_path / "run"
    Checkpoints(folder, {"seed": 1}).save(run_state(0))
    for name in ("state-abc.json", "state-.json", "state-1e5.json", "state-00000.json.bak"):
        (folder / name).write_text("{}")
    assert load_run_state(Checkpoints(folder, {"seed": 1})).num_kept == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not a JSON object"),
        ('{"format": 99, "seed": 1}', "a newer version of isotherm wrote it"),
        ('{"format": 3, "seed": 1}', "an older version of isotherm wrote it"),
        ('{"format": "x"}', "has format x, this version reads"),
        ("\x00\xff", "it is not JSON"),
    ],
)
def test_a_forged_run_json_is_refused(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(Damaged, match=message):
        Checkpoints(tmp_path, {"seed": 1})


def test_run_json_may_be_neither_a_link_nor_a_pipe_nor_a_folder_nor_huge(tmp_path):
    path = tmp_path / "run.json"
    (tmp_path / "other").write_text("{}")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(Damaged, match="is a link"):
        Checkpoints(tmp_path, {"seed": 1})
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Damaged, match="is a link"):
        Checkpoints(tmp_path, {"seed": 1})
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damaged, match="is not a file"):
        Checkpoints(tmp_path, {"seed": 1})
    path.unlink()
    path.mkdir()
    with pytest.raises(Damaged, match="is not a file"):
        Checkpoints(tmp_path, {"seed": 1})
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(Damaged, match="more than isotherm writes"):
        read_json(path)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a\\b", "c:x", "a\0b", None, 7, []]
)
def test_names_that_lead_out_of_a_folder_are_refused(tmp_path, name):
    with pytest.raises(Damaged, match="is not the name of a file in"):
        inside(tmp_path, name)


def test_an_archive_may_not_count_the_same_bytes_twice(tmp_path):
    """Entries that overlap: the sum of their sizes is larger than the file."""
    path, stream = tmp_path / "x.npz", io.BytesIO()
    npy.write_array(stream, np.zeros(1000))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("leaf0.npy", stream.getvalue())
        first = archive.infolist()[0]
        for number in range(1, 50):
            again = zipfile.ZipInfo(f"leaf{number}.npy")
            again.header_offset, again.CRC = first.header_offset, first.CRC
            again.file_size = again.compress_size = first.file_size
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
            archive._didModify = True
    with pytest.raises(Damaged, match="is damaged"):
        npz.load(path)
