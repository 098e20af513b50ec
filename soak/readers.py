"""The readers to fuzz: seed inputs, how an input becomes a file, and checks of the result.

The first byte of an input selects the compression of the rest, so that mutated bytes can be inside
a file with a valid checksum.
"""

import bz2
import gzip
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAMES = ("idx", "libsvm", "ldac", "matrix-market", "npz", "vocabulary", "wiki-xml", "wikitext")
NEXT = b"\0NEXT\0"
"""Separates the arrays of an npz in an input."""
WORDS = 20
"""Size of the vocabulary, and number of columns."""


class Reader(NamedTuple):
    """A reader, its seeds and the vocabulary of its inputs."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Any], str]
    """Reads an input, with a folder for files, and returns a description of the result."""
    words: tuple[bytes, ...] = ()
    """Strings that libFuzzer inserts into inputs."""
    longest: int = 4096
    """Longest input in bytes."""


def load(name: str) -> Reader:
    """Import and return a reader."""
    return {
        "idx": _idx,
        "libsvm": _libsvm,
        "ldac": _ldac,
        "matrix-market": _matrix_market,
        "npz": _npz,
        "vocabulary": _vocabulary,
        "wiki-xml": _wiki_xml,
        "wikitext": _wikitext,
    }[name]()


def write_file(data: bytes, folder: Any, name: str) -> Path:
    """Write an input without its first byte: plain, gzipped, or plain with the suffix `.gz`."""
    form, content = (data[0] % 3 if data else 0), data[1:]
    path = Path(folder) / (f"{name}.gz" if form else name)
    path.write_bytes(gzip.compress(content, 1) if form == 1 else content)
    return path


def forms(*contents: bytes) -> list[bytes]:
    """Return inputs of all three kinds of `write_file`."""
    return [bytes([form]) + content for content in contents for form in range(2)] + [
        b"\2" + gzip.compress(content, mtime=0) for content in contents
    ]


def attempt(function: Callable[[], Any]) -> Any:
    """Return the result, or the `ValueError`; its message must quote a name and be short."""
    try:
        return function()
    except ValueError as error:
        message = str(error)
        assert "`" in message and len(message) < 2000, message
        return error


def agree(one: Any, other: Any) -> None:
    """Check that two readers return the same counts, or both refuse."""
    assert isinstance(one, ValueError) == isinstance(other, ValueError), (one, other)
    if not isinstance(one, ValueError):
        for a, b in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)


def make_streamed() -> Callable[[Path], Any]:
    """Return a function that reads a file of counts two documents at a time."""
    from isotherm.data.shards import Shards
    from isotherm.data.word_counts import stack

    def streamed(path: Path) -> Any:
        parts = [batch.counts for batch in Shards([path], WORDS).batches(2)]
        return stack(parts) if parts else None

    return streamed


def _idx() -> Reader:
    from isotherm.data.idx import DTYPES, read_idx

    def seeds() -> list[bytes]:
        heads = [bytes([0, 0, code, 2, 0, 0, 0, 2, 0, 0, 0, 3]) for code in DTYPES]
        sizes = [np.dtype(name).itemsize for name in DTYPES.values()]
        return forms(*(head + bytes(6 * size) for head, size in zip(heads, sizes, strict=True)))

    def read(data: bytes, folder: Any) -> str:
        result = attempt(lambda: read_idx(write_file(data, folder, "idx")))
        if isinstance(result, np.ndarray) and data[0] % 3 < 2:
            assert len(data) == 1 + 4 + 4 * result.ndim + result.nbytes
        return repr(result)

    return Reader(seeds, read)


def _libsvm() -> Reader:
    from isotherm.data.libsvm import read_libsvm

    def read(data: bytes, folder: Any) -> str:
        result = attempt(lambda: read_libsvm(write_file(data, folder, "svm"), WORDS))
        if not isinstance(result, ValueError):
            assert np.isfinite(result.x.toarray()).all() and len(result.y) == result.x.shape[0]
        return repr(result)

    lines = b"+1 1:0.5 3:2\n-1 2:1 20:1e3\n1\n", b"1 qid:3 4:1 # comment\n", b"1,2 3:1\n"
    return Reader(lambda: forms(*lines), read, (b" ", b":", b"qid:", b"\n", b"#", b"1e308", b"nan"))


def _ldac() -> Reader:
    from isotherm.data.bag_of_words import read_ldac

    streamed = make_streamed()

    def read(data: bytes, folder: Any) -> str:
        path = write_file(data, folder, "bag.ldac")
        result = attempt(lambda: read_ldac(path, WORDS))
        attempt(lambda: read_ldac(path))
        other = attempt(lambda: streamed(path))
        if other is not None:  # without documents, one refuses and the other returns none
            agree(result, other)
        return repr(result)

    lines = b"2 0:1 3:2\n0\n1 19:4\n", b"3 5:1 2:2 5:3\n"
    return Reader(
        lambda: forms(*lines), read, (b" ", b":", b"\n", b"2147483647", b"99999999999999")
    )


def _matrix_market() -> Reader:
    from isotherm.data.bag_of_words import read_matrix_market

    def seeds() -> list[bytes]:
        head = b"%%MatrixMarket matrix "
        return forms(
            head + b"coordinate integer general\n% comment\n3 4 2\n1 1 2\n3 4 1\n",
            head + b"coordinate real symmetric\n2 2 1\n1 1 2.0\n",
            head + b"array integer general\n2 2\n1\n2\n3\n4\n",
            head + b"coordinate pattern general\n2 2 1\n1 2\n",
        )

    def read(data: bytes, folder: Any) -> str:
        return repr(attempt(lambda: read_matrix_market(write_file(data, folder, "bag.mtx"))))

    words = (
        b"coordinate",
        b"array",
        b"integer",
        b"real",
        b"complex",
        b"general",
        b"symmetric",
        b"1 ",
    )
    return Reader(seeds, read, words)


def _npz() -> Reader:
    from isotherm.data.bag_of_words import read_npz

    streamed = make_streamed()
    names = ("indptr", "indices", "data", "format", "shape")

    def seeds() -> list[bytes]:
        inputs = []
        for word_type, count_type in (("i4", "i4"), ("i8", "f8"), ("u2", "u1")):
            arrays = (
                np.array([0, 2, 2, 3], "i8"),
                np.array([1, 5, 0], word_type),
                np.array([2, 1, 4], count_type),
                np.array(b"csr"),
                np.array([3, WORDS]),
            )
            parts = NEXT.join(map(npy, arrays))
            inputs += [bytes([form]) + parts for form in (0, 1)]
            inputs.append(b"\2" + archive(parts, zipfile.ZIP_DEFLATED))
        return inputs

    def npy(array: np.ndarray) -> bytes:
        stream = io.BytesIO()
        np.save(stream, array)
        return stream.getvalue()

    def archive(content: bytes, compression: int) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", compression) as file:
            for name, part in zip(names, content.split(NEXT), strict=False):
                file.writestr(f"{name}.npy", part)
        return stream.getvalue()

    def read(data: bytes, folder: Any) -> str:
        form, content = (data[0] % 3 if data else 2), data[1:]
        if form < 2:
            content = archive(content, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[form])
        path = Path(folder) / "bag.npz"
        path.write_bytes(content)
        result, other = attempt(lambda: read_npz(path)), attempt(lambda: streamed(path))
        if other is not None and not isinstance(other, ValueError):
            agree(result, other)
        return f"{result!r}; {other!r}"

    words = (
        NEXT,
        b"'<i4'",
        b"'<f8'",
        b"'|O'",
        b"'|S3'",
        b"True",
        b"(3,)",
        b"(99999999999,)",
        b"csc",
    )
    return Reader(seeds, read, words)


def _vocabulary() -> Reader:
    from isotherm.data.bag_of_words import read_vocabulary
    from isotherm.data.wikipedia import read_words

    def read(data: bytes, folder: Any) -> str:
        path = write_file(data, folder, "words")
        attempt(lambda: read_words(path))
        return repr(attempt(lambda: read_vocabulary(path)))

    return Reader(lambda: forms(b"cat\ndog\nFish\n", "é\nß\n".encode()), read)


def _wiki_xml() -> Reader:
    from isotherm.data import wikidump, wikipages

    head = b"""<mediawiki xml:lang="en"><siteinfo><sitename>Toy</sitename><namespaces>
<namespace key="0" case="first-letter"/><namespace key="6">Datei</namespace></namespaces>
</siteinfo>"""
    page = b"""<page><title>A</title><ns>0</ns><id>1</id><revision><id>2</id>
<timestamp>2020-01-01T00:00:00Z</timestamp>
<contributor><username>M</username><id>7</id></contributor>
<model>wikitext</model><format>text/x-wiki</format>
<text bytes="1" xml:space="preserve">cat ''dog'' [[cat|dog]]
{{x|y}} &lt;ref&gt;a&lt;/ref&gt;</text><sha1>x</sha1></revision></page>"""

    def dump(data: bytes) -> bytes:
        """Compress an input: plain, gzipped, one bz2 stream, a bz2 stream per line, or plain."""
        form, content = (data[0] % 5 if data else 0), data[1:]
        if form == 1:
            return gzip.compress(content, 1)
        if form == 2:
            return bz2.compress(content, 1)
        if form == 3:
            return b"".join(map(bz2.compress, content.splitlines(keepends=True)[:20]))
        return content

    def alternate(data: bytes) -> bool:
        """Return whether page tags alternate; only then the result cannot depend on the chunks."""
        tags = re.findall(rb"</?page>", data[1:])
        return data[0] % 5 < 4 and tags == [b"<page>", b"</page>"] * (len(tags) // 2)

    def counted(path: Path, size: int, settings: wikipages.Settings) -> Iterator[Any]:
        for chunk in wikidump.chunks(path, size):
            result = wikipages.count_chunk(chunk, settings)
            yield from zip(
                result.page_id.tolist(), result.counts.to_csr().toarray().tolist(), strict=True
            )
            if result.trouble is not None:
                return

    def read(data: bytes, folder: Any) -> str:
        path = Path(folder) / "dump"
        path.write_bytes(dump(data))
        header = attempt(lambda: wikipages.read_header(path))
        if isinstance(header, ValueError):
            return repr(header)
        settings = wikipages.Settings({"cat": 0, "dog": 1}, header, 1)
        result = list(counted(path, 1 << 20, settings))
        other = list(counted(path, 1 << 10, settings))
        if alternate(data):
            assert result == other, (data, result, other)  # for any size of chunks
        return repr(result)

    def seeds() -> list[bytes]:
        whole = head + 3 * (page + b"\n") + b"</mediawiki>"
        old = whole.replace(b"<ns>0</ns>", b"").replace(
            b"<id>1</id>", b"<redirect title='B'/><id>1</id>"
        )
        plain = [bytes([form]) + text for text in (whole, old) for form in range(5)]
        return [*plain, *(b"\4" + dump(seed) for seed in plain)]

    words = (
        b"<page>",
        b"</page>",
        b"<revision>",
        b"</revision>",
        b"<text>",
        b"</text>",
        b"<id>",
        b"</id>",
        b"<ns>",
        b"</ns>",
        b"<title>",
        b"</mediawiki>",
        b"<mediawiki",
        b"<!DOCTYPE",
        b"<![CDATA[",
        b"]]>",
        b"<!--",
        b"-->",
        b"&amp;",
        b"&lol;",
        b"<contributor>",
        b"<redirect",
        b"<upload>",
        b"<restrictions>",
    )
    return Reader(seeds, read, words, longest=8192)


def _wikitext() -> Reader:
    from isotherm.data import wikitext

    hidden = frozenset({"file", "image", "category"})
    words = (
        b"{{",
        b"}}",
        b"[[",
        b"]]",
        b"{|",
        b"|}",
        b"|-",
        b"|",
        b"!",
        b"''",
        b"'''",
        b"<ref>",
        b"</ref>",
        b"<ref name=",
        b"/>",
        b"<!--",
        b"-->",
        b"<nowiki>",
        b"</nowiki>",
        b"<math>",
        b"==",
        b"\n",
        b"\n*",
        b"[http://",
        b"]",
        b"&#x",
        b"&amp;",
        b";",
        b"File:",
        b"{{{",
        b"}}}",
        b"<div",
        b"</div>",
        b"=",
        b'"',
    )

    def read(data: bytes, folder: Any) -> str:
        """Repeat the text; the first byte of the input is the number of repetitions.

        Repetition makes slow cases very slow, so that they are found.

        The length is limited because mwparserfromhell takes quadratic time on some texts.
        """
        repeats = data[0] + 1 if data else 1
        text = (data[1:].decode("utf-8", "replace") * repeats)[:40_000]
        for stripped in (
            wikitext.strip_markup(text, hidden)[0],
            wikitext.strip_with_regex(text, hidden),
        ):
            assert all(word.isascii() and word.islower() for word in wikitext.tokens(stripped))
        return f"{len(text)} characters"

    def seeds() -> list[bytes]:
        text = b"""'''Ice''' is [[water|solid ''water'']].<ref name="a">{{cite|b=[[c]]}}</ref>
{{Info|x={{y|z}}}}
{| class="w"\n|-\n! a\n| b || c\n|}\n== History ==\n* [http://a.b c] &amp; &#65;
[[File:x.png|thumb|A [[b]]]]
<math>x^2</math><!-- no --><nowiki>[[</nowiki>[[Category:Ice]]"""
        return [bytes([n]) + part for n in (0, 3, 200) for part in (text, *words)]

    return Reader(seeds, read, words, longest=2048)
