"""Matplotlib's SVG files, converted for use inside an HTML page."""

import re
from xml.etree import ElementTree

_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_TAGS = frozenset(
    "svg g defs path use rect circle text tspan image clipPath pattern "
    "linearGradient radialGradient stop filter feColorMatrix feComponentTransfer feFuncA".split()
)


def inline_svg(source: str, *, prefix: str, label: str) -> str:
    """Return an `<svg>` element for use in HTML.

    Only the drawing is kept. Elements and attributes that Matplotlib does not draw with, links to
    other files, the metadata and the style sheet (which would apply to the whole page) are removed.

    Parameters
    ----------
    source
        The text of a file that Matplotlib saved.
    prefix
        Put before every id, so that the ids of several figures on a page are unique.
    label
        Text alternative of the figure.
    """
    try:
        root = ElementTree.fromstring(source)
    except ElementTree.ParseError as error:
        raise ValueError(f"Not an SVG image: {error}.") from error
    if root.tag != f"{_NAMESPACE}svg":
        raise ValueError(f"Not an SVG image: the outermost element is `{root.tag}`.")
    try:
        _clean(root, prefix)
    except RecursionError:
        raise ValueError("Not an SVG image: it is nested too deeply.") from None
    root.attrib.pop("height", None)
    # The rules of Matplotlib's style sheet, inherited from the root instead.
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    root.attrib |= {"role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str) -> None:
    element.tag = element.tag.removeprefix(_NAMESPACE)
    attributes = {}
    for name, value in element.attrib.items():
        name = "href" if name == _LINK else name
        if _is_allowed(name, value):
            attributes[name] = _adapt(name, value, prefix)
    element.attrib = attributes
    for child in list(element):
        if child.tag.removeprefix(_NAMESPACE) in _TAGS:
            _clean(child, prefix)
        else:
            element.remove(child)


def _is_allowed(name: str, value: str) -> bool:
    if name == "href":
        return value.startswith(("#", "data:image/png;base64,"))
    external = re.search(r"url\((?!#)|\\", value)
    return not (name.startswith(("on", "{")) or external)


def _adapt(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "d":
        return re.sub(r"(\.\d\d)\d+", r"\1", value)  # a hundredth of a point is enough
    if name == "href" and value.startswith("#"):
        return f"#{prefix}{value[1:]}"
    return value.replace("url(#", f"url(#{prefix}")
