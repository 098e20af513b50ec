"""The registry finds files, detects wrong checksums, and keeps no download it has not checked."""

import gzip
import hashlib
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isotherm.data import registry
from isotherm.data.registry import ChecksumError, DataNotFoundError, Dataset, File

CONTENT = {"one": b"first file\n", "two": b"second file\n" * 100}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve a folder over HTTP on this machine; yield the address and the folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield f"http://127.0.0.1:{httpd.server_port}", folder
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def toy(server, monkeypatch):
    """A dataset: `one` is served gzipped, `two` plain, and the first source of both fails."""
    address, folder = server
    packed = gzip.compress(CONTENT["one"])
    (folder / "one.gz").write_bytes(packed)
    (folder / "two").write_bytes(CONTENT["two"])
    files = [
        File(
            name,
            len(content),
            sha256(content),
            (f"{address}/dead/{name}", f"{address}/{name}{end}"),
        )
        for (name, content), end in zip(CONTENT.items(), (".gz", ""), strict=True)
    ]
    files[0] = files[0]._replace(sha256_gz=sha256(packed))
    known = {"toy": Dataset("toy", "A toy", "none", tuple(files))}
    monkeypatch.setattr(registry, "datasets", lambda: known)
    return folder


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The four data folders (environment, two shared ones, cache); none of them exists yet."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ISOTHERM_DATA", str(tmp_path / "environment"))
    monkeypatch.setattr(registry, "_user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "root/co/src/isotherm/data/r.py"))
    (tmp_path / "root/co").mkdir(parents=True)
    (tmp_path / "root/co/pyproject.toml").touch()
    names = ["environment", "shared/data", "root/shared/data", "cache"]
    return [tmp_path / name for name in names]


def put(folder, name="one", content=None, dataset="toy"):
    path = folder / dataset / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT[name.removesuffix(".gz")] if content is None else content)
    return path


def test_search_order(toy, folders, tmp_path):
    for folder in reversed(folders):
        path = put(folder)
        assert registry.locate("toy", files=["one"]) == {"one": path}
    assert registry.data_folders() == folders
    own = put(tmp_path / "own")
    assert registry.locate("toy", tmp_path / "own", ["one"]) == {"one": own}


def test_a_given_folder_is_the_only_one_searched(toy, folders, tmp_path):
    put(folders[0]), put(folders[0], "two")
    with pytest.raises(DataNotFoundError, match="toy/one"):
        registry.locate("toy", tmp_path / "own")


def test_without_environment_or_checkout_only_the_cache_is_searched(toy, folders, monkeypatch):
    monkeypatch.delenv("ISOTHERM_DATA")
    assert registry.data_folders() == [folders[3]]
    assert registry.download_folder("toy") == folders[3] / "toy"


def test_the_error_for_missing_data_lists_the_folders_and_the_command(toy, folders):
    put(folders[3])
    with pytest.raises(FileNotFoundError) as caught:
        registry.locate("toy")
    message = str(caught.value)
    assert "`toy/two`" in message and "toy/one" not in message
    assert str(folders[0]) in message and str(folders[3]) in message
    assert "isotherm data fetch toy" in message


def test_the_error_for_missing_data_without_a_source_suggests_no_download(
    toy, folders, monkeypatch
):
    files = tuple(file._replace(urls=()) for file in registry.find("toy").files)
    only = {"toy": Dataset("toy", "", "", files)}
    monkeypatch.setattr(registry, "datasets", lambda: only)
    with pytest.raises(
        DataNotFoundError, match=r"There is no public source\. .*ISOTHERM_DATA"
    ) as caught:
        registry.locate("toy")
    assert "fetch" not in str(caught.value)


def test_unknown_names():
    with pytest.raises(ValueError, match="Unknown dataset `a9`: did you mean `a9a`"):
        registry.locate("a9")
    with pytest.raises(ValueError, match="`a9a` has no file `b`"):
        registry.locate("a9a", files=["b"])


def test_verify_plain_and_gzipped(toy, tmp_path):
    put(tmp_path, "one.gz", gzip.compress(CONTENT["one"], compresslevel=1))
    assert [c.state for c in registry.verify("toy", tmp_path)] == ["ok", "missing"]
    put(tmp_path, "two", CONTENT["two"][:-1])
    assert [c.state for c in registry.verify("toy", tmp_path)] == ["ok", "wrong checksum"]


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b"no gzip"])
def test_a_damaged_gzip_has_the_wrong_checksum(toy, tmp_path, damage):
    put(tmp_path, "one.gz", damage(gzip.compress(CONTENT["one"])))
    assert registry.verify("toy", tmp_path)[0].state == "wrong checksum"


def test_fetch_tries_the_next_source_and_verifies(toy, folders):
    checks = registry.fetch("toy")
    folder = folders[0] / "toy"
    assert [c.path for c in checks] == [folder / "one.gz", folder / "two"]
    assert {c.state for c in checks} == {"ok"}
    shutil.rmtree(toy)  # existing files are not downloaded again
    assert registry.fetch("toy") == checks


def test_fetch_replaces_a_wrong_file(toy, tmp_path):
    put(tmp_path, "two", b"wrong")
    assert {c.state for c in registry.fetch("toy", tmp_path)} == {"ok"}


def test_fetch_keeps_nothing_with_a_wrong_checksum(toy, tmp_path, monkeypatch):
    (toy / "two").write_bytes(b"something else")
    one, two = registry.find("toy").files
    only = {"toy": Dataset("toy", "", "", (one, two._replace(urls=two.urls[1:])))}
    monkeypatch.setattr(registry, "datasets", lambda: only)
    with pytest.raises(ChecksumError, match=r"`two`.*wrong checksum"):
        registry.fetch("toy", tmp_path)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["one.gz"]


def test_fetch_names_the_source_that_failed(toy, tmp_path):
    shutil.rmtree(toy)
    with pytest.raises(OSError, match=r"`one`: .*/dead/one failed \(HTTPError\); "):
        registry.fetch("toy", tmp_path)


def test_fetch_downloads_the_rest_before_it_reports_a_file_without_a_source(
    toy, tmp_path, monkeypatch
):
    one, two = registry.find("toy").files
    only = {"toy": Dataset("toy", "", "", (one._replace(urls=()), two))}
    monkeypatch.setattr(registry, "datasets", lambda: only)
    with pytest.raises(DataNotFoundError, match="`one` of `toy` cannot be downloaded"):
        registry.fetch("toy", tmp_path)
    assert (tmp_path / "toy" / "two").read_bytes() == CONTENT["two"]


def test_fetch_updates_a_progress_bar(toy, tmp_path):
    class Bar:
        total, seen = 0, 0

        def update(self, count):
            self.seen += count

        def reset(self):
            pass

        def close(self):
            pass

    bar = Bar()
    registry.fetch("toy", tmp_path, progress=bar)
    assert bar.seen > len(CONTENT["two"])


def test_the_registry_is_well_formed():
    for name, dataset in registry.datasets().items():
        assert name == dataset.name and dataset.title and dataset.licence and dataset.files
        for file in dataset.files:
            assert len(file.sha256) == 64 and file.bytes > 0 and not file.name.endswith(".gz")
            for url in file.urls:
                assert url.startswith("https://")
                assert not url.endswith(".gz") or len(file.sha256_gz) == 64


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", registry.datasets())
def test_the_real_files_match_the_registry(name):
    for file, path, state in registry.verify(name, SHARED):
        assert state == "ok", file.name
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            assert sum(map(len, iter(lambda s=stream: s.read(2**20), b""))) == file.bytes


def test_a_file_in_place_of_a_data_folder_is_named(toy, tmp_path, monkeypatch):
    """The sources are not to blame."""
    (tmp_path / "file").write_text("")
    for call in (registry.fetch, registry.verify, registry.locate):
        with pytest.raises(ValueError, match="is a file, not a folder with data"):
            call("toy", tmp_path / "file")
    monkeypatch.setenv("ISOTHERM_DATA", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="is a file, not a folder with data"):
        registry.download_folder("toy")
