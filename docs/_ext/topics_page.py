"""Draw the pictures of `docs/topics.md` with Chromium: the page about topics of ICML abstracts.

`PYTHONPATH=tests python docs/_ext/topics_page.py` writes `docs/figures/topics_page.png` and
`topics_page_layers.png` in a minute. It needs the ICML abstracts and Chromium.
"""

import tempfile
from base64 import b64decode
from pathlib import Path

from browser import Browser
from isotherm.topics.corpus_readers import load_icml
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA

FIGURES = Path(__file__).parents[1] / "figures"


def draw(tab: Browser, name: str, top: float = 0, height: float = 1000) -> None:
    """Write a picture of the page from `top`, in pixels, as `name`."""
    clip = {"x": 0, "y": top, "width": 1280, "height": height, "scale": 1}
    picture = tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    (FIGURES / name).write_bytes(b64decode(picture))


def main() -> None:
    """Fit both models and draw the pictures."""
    corpus, title = load_icml(), "ICML abstracts"
    lda = BayesianLDA(20, random_state=0).fit(corpus)
    deep = BayesianDPFA((20, 8, 4), random_state=0).fit(corpus)
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as tab:
        page = Path(folder) / "page.html"
        lda.write_page(page, corpus, title=title)
        tab.resize(1280, 1000)
        tab.open(page)
        draw(tab, "topics_page.png")
        deep.write_page(page, corpus, title=title)
        tab.resize(1280, 1000, dark=True)
        tab.open(page)
        box = "document.getElementById('layers').getBoundingClientRect()"
        draw(tab, "topics_page_layers.png", tab.ask(f"{box}.y - 16"), tab.ask(f"{box}.height + 32"))
        assert tab.errors == [], tab.errors


if __name__ == "__main__":
    main()
