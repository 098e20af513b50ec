"""Shards have the exact word counts, for any number of workers and of interruptions."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import wikis
from isotherm.data import registry, wikidump, wikipedia
from isotherm.data.bag_of_words import read_npz
from isotherm.data.shards import Shards
from isotherm.data.wikipedia import Tally, build_shards, read_words

SMALL = {"min_tokens": 2, "workers": 1, "shard_documents": 6, "chunk_bytes": 2000}
MULTISTREAM = "toy-multistream.xml.bz2"


def build(dump, out, **changes):
    return build_shards(dump, dump.parent / "words.txt", out, **{**SMALL, **changes})


def documents(built):
    """Return the counts of every document by page id."""
    if not built.shards:
        return {}
    rows = [batch.counts.to_csr().toarray() for batch in Shards(built.shards, 4).batches(7)]
    ids = np.concatenate([np.load(path)["page_id"] for path in built.shards])
    assert (np.diff(ids) > 0).all()
    return dict(zip(ids.tolist(), np.concatenate(rows).tolist(), strict=True))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A multistream dump, and the files of an uninterrupted build."""
    folder = tmp_path_factory.mktemp("whole")
    dump = wikis.write(folder, MULTISTREAM, wikis.toy_pages())
    build(dump, folder / "out")
    return dump, files(folder / "out")


@pytest.mark.parametrize("name", wikis.FORMS)
def test_exact_counts(tmp_path, name):
    built = build(wikis.write(tmp_path, name, wikis.toy_pages()), tmp_path / "out")
    counts = wikis.toy_counts()
    assert documents(built) == counts
    tokens = sum(map(sum, counts.values()))
    assert built.tally == Tally(32, 2, 2, 2, 1, 1, tokens, 0) and built.tally.pages == 40
    assert built.trouble is None and len(built.shards) > 2
    assert read_words(built.vocabulary) == ("cat", "dog", "fish", "bird")
    assert sparse.load_npz(built.shards[0]).shape[1] == 4
    assert read_npz(built.shards[0]).num_words == 4


def test_articles_that_are_too_short_are_skipped_and_counted(tmp_path):
    dump = wikis.write(tmp_path, "toy.xml", wikis.toy_pages())
    built = build(dump, tmp_path / "out", min_tokens=30)
    assert sorted(documents(built)) == [n for n in wikis.toy_counts() if n + 2 >= 30]
    assert built.tally.documents + built.tally.short == 33
    assert build(dump, tmp_path / "none", min_tokens=1000).shards == ()


def test_shards_do_not_depend_on_the_number_of_workers(uninterrupted, tmp_path):
    dump, expected = uninterrupted
    build(dump, tmp_path / "out", workers=2)
    assert files(tmp_path / "out") == expected


@pytest.mark.slow
def test_shards_of_a_gzipped_dump_do_not_depend_on_the_number_of_workers(tmp_path):
    dump = wikis.write(tmp_path, "toy.xml.gz", wikis.toy_pages())
    for workers in (1, 3):
        build(dump, tmp_path / str(workers), workers=workers)
    assert files(tmp_path / "1") == files(tmp_path / "3")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["toy.xml.bz2", MULTISTREAM])
@pytest.mark.parametrize("moment", ["before the rename", "after the rename"])
def test_a_build_killed_at_any_write_resumes_to_the_same_shards(
    tmp_path, monkeypatch, name, moment
):
    """The build is killed at one write after the other, and resumed each time."""
    dump = wikis.write(tmp_path, name, wikis.toy_pages())
    build(dump, tmp_path / "whole")
    replace, deadline, writes = os.replace, 0, 0

    def kill(source, target):
        nonlocal writes
        writes += 1
        if writes == deadline and moment == "before the rename":
            raise Killed
        replace(source, target)
        if writes == deadline:
            raise Killed

    monkeypatch.setattr("isotherm.io.files.os.replace", kill)
    kills = 0
    while True:
        deadline, writes = 1 + kills % 4, 0
        try:
            build(dump, tmp_path / "out")
            break
        except Killed:
            kills += 1
            assert kills < 100
    assert kills > 6
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("limit", [None, 21])
def test_a_build_killed_while_counting_resumes(uninterrupted, tmp_path, limit):
    dump, expected = uninterrupted
    if limit is not None:
        build(dump, tmp_path / "limited", limit=limit)
        expected = files(tmp_path / "limited")
    starts = []
    for after in (1, 2, 3, 4, 100):
        seen = []

        def progress(read, pages, seen=seen, after=after):
            seen.append(pages)
            if len(seen) == after:
                raise Killed

        try:
            build(dump, tmp_path / "out", progress=progress, limit=limit)
        except Killed:
            pass
        starts += seen[:1]
    assert files(tmp_path / "out") == expected
    assert starts == sorted(starts) and starts[-1] > starts[0]


@pytest.mark.slow
def test_a_build_killed_by_sigkill_resumes_and_leaves_no_workers(uninterrupted, tmp_path):
    dump, expected = uninterrupted
    code = f"""
import os, sys, time
from isotherm.data.wikipedia import build_shards
if __name__ == "__main__":
    def progress(read, pages):
        if pages > 20:
            import multiprocessing
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
            time.sleep(60)
    build_shards({str(dump)!r}, {str(dump.parent / "words.txt")!r}, {str(tmp_path / "out")!r},
                 progress=progress, **{ {**SMALL, "workers": 2} })
"""
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE)
    with process:
        children = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert len(children) == 2
    build(dump, tmp_path / "out")
    assert files(tmp_path / "out") == expected
    for _ in range(100):
        if not any(map(_is_alive, children)):
            return
        time.sleep(0.05)
    raise AssertionError("workers are still alive")


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_finished_build_is_not_repeated(uninterrupted, tmp_path):
    dump, expected = uninterrupted
    first = build(dump, tmp_path / "out")
    calls = []
    assert build(dump, tmp_path / "out", progress=lambda *numbers: calls.append(numbers)) == first
    assert not calls and files(tmp_path / "out") == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_limit(uninterrupted, tmp_path, workers):
    dump, _ = uninterrupted
    built = build(dump, tmp_path / "out", limit=13, workers=workers)
    counts = wikis.toy_counts()
    assert documents(built) == {n: counts[n] for n in sorted(counts)[:13]}
    assert built.tally.pages == sorted(counts)[12] + 1 and built.trouble is None


@pytest.mark.parametrize("name", [name for name in wikis.FORMS if name != "toy.xml.bz2"])
def test_pages_before_a_truncation_are_kept(tmp_path, name):
    dump = wikis.write(tmp_path, name, wikis.toy_pages())
    dump.write_bytes(dump.read_bytes()[: int(0.9 * dump.stat().st_size)])
    built = build(dump, tmp_path / "out")
    assert (
        "is truncated" in built.trouble
        and f"the {built.tally.pages} pages before that point" in built.trouble
    )
    got, counts = documents(built), wikis.toy_counts()
    assert got == {n: counts[n] for n in counts if n < built.tally.pages}
    assert len(got) > 15
    assert build(dump, tmp_path / "out") == built


def test_pages_before_a_damaged_block_are_kept(tmp_path):
    dump = wikis.write(tmp_path, MULTISTREAM, wikis.toy_pages())
    content = bytearray(dump.read_bytes())
    content[len(content) // 2] ^= 0xFF
    dump.write_bytes(content)
    built = build(dump, tmp_path / "out", workers=2)
    assert "is damaged in its bz2 data" in built.trouble
    counts = wikis.toy_counts()
    assert documents(built) == {n: counts[n] for n in counts if n < built.tally.pages}
    assert 10 < built.tally.pages < 30


def test_entities_do_not_expand(tmp_path):
    """Entities in the header are refused; those between pages never reach the parser."""
    bomb = '<!DOCTYPE x [<!ENTITY a "cat "><!ENTITY b "&a;&a;&a;&a;">]>'
    article = wikis.page(1, "dog dog BOMB").replace("BOMB", "&b;")
    dump = wikis.write(tmp_path, "toy.xml", [article])
    dump.write_bytes(bomb.encode() + dump.read_bytes())
    with pytest.raises(ValueError, match="declares a document type"):
        build(dump, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    dump = wikis.write(tmp_path, "toy.xml", [wikis.page(0, "dog dog"), bomb, article])
    built = build(dump, tmp_path / "out")
    assert documents(built) == {0: [0, 2, 0, 0]} and built.tally.malformed == 1


def test_old_dumps_without_namespace_numbers(tmp_path):
    pages = [wikis.page(n, "cat dog", ns="") for n in range(3)]
    pages[1] = pages[1].replace("Page 1", "Template:Page 1")
    built = build(wikis.write(tmp_path, "toy.xml", pages), tmp_path / "out")
    assert sorted(documents(built)) == [0, 2] and built.tally.namespace == 1


def test_pages_too_complex_to_parse_are_counted(tmp_path):
    pages = [wikis.page(0, "cat dog " + "{{a|" * 5000), wikis.page(1, "cat dog")]
    built = build(wikis.write(tmp_path, "toy.xml", pages), tmp_path / "out")
    assert documents(built) == {0: [1, 1, 0, 0], 1: [1, 1, 0, 0]} and built.tally.plain == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "is empty: a vocabulary needs"),
        ("cat\ndog\ncat\n", "line 3: duplicate word 'cat', first on line 1"),
        ("cat\nCat\n", "line 2: duplicate word 'Cat', in other case on line 1"),
        ("cat\ndon't\n", 'line 2: "don\'t" must have the letters a to z only'),
        ("cat\ncafé\n", "line 2: 'café' must have the letters a to z only"),
        ("cat\n\ndog\n", "line 2: the line is blank"),
    ],
)
def test_vocabularies_that_cannot_be_used(tmp_path, words, message):
    dump = wikis.write(tmp_path, "toy.xml", wikis.toy_pages(3))
    (tmp_path / "words.txt").write_text(words)
    with pytest.raises(ValueError, match=message):
        build(dump, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_contents_is_refused(uninterrupted, tmp_path):
    dump, _ = uninterrupted
    out = tmp_path / "out"
    build(dump, out)
    with pytest.raises(
        ValueError, match="was started with `min_tokens` 2, not 3: use the same value, or"
    ):
        build(dump, out, min_tokens=3)
    other = wikis.write(tmp_path, "toy.xml", wikis.toy_pages(3))
    with pytest.raises(ValueError, match="was started with `dump_bytes`"):
        build(other, out)
    shard = out / "wiki-00001.npz"
    content = shard.read_bytes()
    for changed in (b"", content[:-1] + bytes([content[-1] ^ 1])):  # the second has the same size
        shard.write_bytes(changed)
        with pytest.raises(ValueError, match=r"wiki-00001.npz` is missing or was changed"):
            build(dump, out)
    (out / "ledger.json").write_text("{")
    with pytest.raises(ValueError, match=r"ledger\.json` is damaged, it is not JSON"):
        build(dump, out)
    (out / "ledger.json").unlink()
    with pytest.raises(ValueError, match=r"has files but no `ledger\.json`"):
        build(dump, out)
    with pytest.raises(ValueError, match="is a file, not a folder"):
        build(dump, dump)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "an older version of isotherm wrote it"),
        ({"format": 99}, "a newer version of isotherm wrote it"),
        ({"shards": 7}, "an entry has another type"),
        ({"shards": [{"name": "../secret.npz"}]}, "an entry has another type"),
        ({"position": "0"}, "an entry has another type"),
    ],
)
def test_a_forged_manifest_is_refused(uninterrupted, tmp_path, change, message):
    dump, _ = uninterrupted
    build(dump, tmp_path / "out")
    path = tmp_path / "out" / "ledger.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        build(dump, tmp_path / "out")


def test_a_manifest_names_no_file_outside_its_folder(uninterrupted, tmp_path):
    dump, _ = uninterrupted
    build(dump, tmp_path / "out")
    path = tmp_path / "out" / "ledger.json"
    entries = json.loads(path.read_text())
    (tmp_path / "secret.npz").write_bytes((tmp_path / "out" / "wiki-00000.npz").read_bytes())
    entries["shards"][0]["name"] = "../secret.npz"
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"`../secret.npz` is not the name of a file in"):
        build(dump, tmp_path / "out")
    entries["shards"][0]["name"] = "linked.npz"
    (tmp_path / "out" / "linked.npz").symlink_to(tmp_path / "secret.npz")
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="is a link; links are not followed"):
        build(dump, tmp_path / "out")


def test_a_dump_that_was_changed_in_the_middle_is_refused(tmp_path):
    """Three mebibytes: only the first and the last one were looked at before."""
    pages = [wikis.page(n, "cat dog " * 60_000) for n in range(7)]
    dump = wikis.write(tmp_path, "toy.xml", pages)
    build(dump, tmp_path / "out", shard_documents=1)
    content = bytearray(dump.read_bytes())
    middle = content.index(b"cat", len(content) // 2)
    content[middle : middle + 3] = b"dog"
    dump.write_bytes(content)
    with pytest.raises(ValueError, match="was started with `dump_sha256`"):
        build(dump, tmp_path / "out", shard_documents=1)


@pytest.mark.parametrize("name", ["workers", "limit", "shard_documents", "chunk_bytes"])
def test_bad_arguments(uninterrupted, tmp_path, name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
        build(uninterrupted[0], tmp_path / "out", **{name: 0})
    with pytest.raises(ValueError, match="`min_tokens` must be at least 0, got -1"):
        build(uninterrupted[0], tmp_path / "out", min_tokens=-1)
    with pytest.raises(FileNotFoundError, match=r"The dump .*nowhere` does not exist"):
        build(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_not_a_hang(uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "count_chunk", _die)
    with pytest.raises(ChildProcessError, match="A worker process was killed"):
        build(uninterrupted[0], tmp_path / "out", workers=2)


def _die(chunk, settings):
    os._exit(9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy.xml.gz", MULTISTREAM])
def test_memory_does_not_grow_with_the_dump(tmp_path, name, monkeypatch):
    """120 more pages of 50 kB each need the same memory, up to uncollected garbage."""
    monkeypatch.setattr(
        "isotherm.data.wikitext.strip_markup", lambda text, hidden: (text.replace("x", ""), True)
    )
    monkeypatch.setattr(wikidump, "BLOCK", 1 << 14)
    peaks = []
    for count in (40, 160):
        pages = [wikis.page(n, "cat dog fish " + "x" * 50_000) for n in range(count)]
        dump = wikis.write(tmp_path, name, pages)
        gc.collect()
        tracemalloc.start()
        built = build(dump, tmp_path / str(count), shard_documents=20, chunk_bytes=200_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert built.tally.documents == count
    assert peaks[1] < 1.2 * peaks[0] + 500_000


def real():
    names = ["dictnostops.txt", "enwiki-pages-articles-p10p30302-shortened.xml.bz2"]
    folders = [folder / "wiki" for folder in registry.data_folders()]
    found = [folder for folder in folders if all((folder / name).is_file() for name in names)]
    if not found:
        pytest.skip("needs the small real dump (`isotherm data list`)")
    return found[0] / names[1], found[0] / names[0]


@pytest.mark.slow
def test_first_articles_of_the_real_dump(tmp_path):
    dump, words = real()
    built = build_shards(dump, words, tmp_path, workers=1, limit=4, chunk_bytes=1 << 16)
    assert built.tally == Tally(4, 54, 0, 0, 0, 0, 6970, 0)
    counts, vocabulary = read_npz(built.shards[0]).to_csr().toarray(), read_words(words)
    assert np.load(built.shards[0])["page_id"].tolist() == [12, 25, 39, 290]
    assert len(vocabulary) == 7702 and vocabulary[3050] == "none"
    top = [[vocabulary[i] for i in np.argsort(-row, kind="stable")[:2]] for row in counts[1:]]
    assert top == [["children", "social"], ["effect", "surface"], ["letter", "open"]]


@pytest.mark.slow
def test_all_of_the_real_dump(tmp_path):
    dump, words = real()
    built = build_shards(dump, words, tmp_path, workers=1)
    assert built.tally == Tally(106, 99, 1, 0, 0, 0, 149_528, 0) and built.trouble is None
    entries = json.loads((tmp_path / "ledger.json").read_text())
    assert entries["ended"] and entries["shards"][0]["documents"] == 106
