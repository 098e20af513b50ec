r"""Integrators: the Euler step of the paper, and palindromic words over exact flows.

A word is read from left to right. A letter that occurs $n$ times lasts $h/n$ each time, so the
total time of every flow is $h$. A word that reads the same backwards is a symmetric composition,
and therefore of second order whatever its letters.

The six letters (`dynamics/flows.py`) are `A` drift, `D` heating, `B` damping, `K` kick, `N` noise
and `O` damping and noise together. `A` and `D` commute, and so do `K` and `N`; such neighbours may
be swapped to obtain a palindrome. Words of the literature have names:

| name | letters | |
| --- | --- | --- |
| `"ABOBA"` | `AD·B·KN·B·DA` | mSGNHT-S of the paper (its A is `AD` here, its O is `KN`) |
| `"BAOAB"`, `"BADODAB"` | `K·AD·O·DA·K` | Leimkuhler & Matthews; with thermostat, & Shang |
| `"OBABO"` | `O·K·AD·K·O` | Bussi & Parrinello |
| `"OABAO"` | `O·AD·K·DA·O` | |
| `"ABDODBA"` | `A·K·D·O·D·K·A` | like BADODAB, but with the drift outside |
| `"DOBABOD"` | `D·O·K·A·K·O·D` | like OBABO, but heats at the ends |
| `"euler"` | `A·E·D` | mSGNHT-E of the paper: `E` is an Euler step of the momentum; order 1 |

In most names of the literature B is the kick; in a word of letters the kick is `K`.

**One gradient per step.** A kick needs a new gradient only if the position has moved since the last
one. A word that kicks before it drifts uses the last gradient of the previous step, which is kept
in the state. At the first step there is none, and the opening kick is omitted: the initial momentum
differs by half a kick.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile

EULER = "AED"

NAMED_WORDS = {
    "ABOBA": "ADBKNBDA",
    "BAOAB": "KADODAK",
    "BADODAB": "KADODAK",
    "OBABO": "OKADKO",
    "OABAO": "OADKDAO",
    "ABDODBA": "AKDODKA",
    "DOBABOD": "DOKAKOD",
}

_MEANING = {
    "A": "drift",
    "D": "heating",
    "B": "damping",
    "K": "kick",
    "N": "noise",
    "O": "damping and noise together",
}


@dataclass(frozen=True)
class Integrator:
    """A parsed word: its letters, their durations, and where it needs gradients."""

    name: str
    letters: str

    @cached_property
    def order(self) -> int:
        """Weak order of accuracy: 2 for a palindrome, 1 otherwise (see `dynamics/order.py`)."""
        return 2 if is_palindrome(self.letters) else 1

    @cached_property
    def carries_gradient(self) -> bool:
        """Whether the last gradient of a step is also the first of the next step."""
        kicks = [i for i, letter in enumerate(self.letters) if letter in "KE"]
        drifts = [i for i, letter in enumerate(self.letters) if letter == "A"]
        return kicks[0] < drifts[0] and kicks[-1] > drifts[-1]

    @cached_property
    def segments(self) -> tuple[tuple[tuple[str, float, int], ...], ...]:
        """The word split at every new gradient: directly after the last drift or heating.

        The letters after them act once the gradient is known, so that the momentum is read from
        memory once per step and both dampings of ABOBA share one exponential. Each entry is
        `(letter, fraction of the step, index of the letter in the word)`.
        """
        counts = Counter(self.letters)
        segments, known = [[]], self.carries_gradient
        for number, letter in enumerate(self.letters):
            if letter in "KE" and not known:
                waiting = list(takewhile(lambda entry: entry[0] not in "AD", segments[-1][::-1]))
                segments[-1] = segments[-1][: len(segments[-1]) - len(waiting)]
                segments.append(waiting[::-1])
                known = True
            if letter == "A":
                known = False
            segments[-1].append((letter, 1 / counts[letter], number))
        return tuple(tuple(segment) for segment in segments)

    @property
    def num_gradients(self) -> int:
        """Number of gradient evaluations per step."""
        return len(self.segments) - 1

    @property
    def moves_before_gradient(self) -> bool:
        """Whether the first gradient is evaluated after a drift."""
        return any(letter == "A" for letter, _, _ in self.segments[0])


def _commuting_family(letter: str) -> str:
    return next((family for family in ("AD", "KN") if letter in family), letter)


def _canonical(letters: str) -> str:
    """Return the letters with commuting neighbours sorted: drift and heating, kick and noise."""
    return "".join("".join(sorted(block)) for _, block in groupby(letters, key=_commuting_family))


def is_palindrome(letters: str) -> bool:
    """Return whether a word reads the same backwards, up to neighbours that commute.

    Examples
    --------
    >>> is_palindrome("ADBKNBDA"), is_palindrome("ADBKN")
    (True, False)
    """
    return _canonical(letters) == _canonical(letters[::-1])


def parse_integrator(word: str, *, symmetric: bool = True) -> Integrator:
    """Return the integrator for `"euler"`, a named word, or a palindrome over `ADBKNO`.

    Parameters
    ----------
    word
        A name from the table of the module, or letters.
    symmetric
        Whether the word must be a palindrome; `dynamics/order.py` also studies others.

    Examples
    --------
    >>> aboba = parse_integrator("ABOBA")
    >>> aboba.letters, aboba.num_gradients, aboba.order
    ('ADBKNBDA', 1, 2)
    >>> parse_integrator("ADBK")
    Traceback (most recent call last):
    ...
    ValueError: The word 'ADBK' never adds noise: it needs the letter N or O.
    """
    if not isinstance(word, str):
        raise ValueError(f"`integrator` must be a word such as 'ABOBA', got {word!r}.")
    if word.lower() == "euler":
        return Integrator("euler", EULER)
    letters = NAMED_WORDS.get(word, word)
    unknown = sorted(set(letters) - set(_MEANING))
    if unknown or not letters:
        raise ValueError(
            f"The word {word!r} has unknown letters {unknown}. Use 'euler', one of "
            f"{sorted(NAMED_WORDS)}, or a palindrome over "
            + ", ".join(f"{letter} ({meaning})" for letter, meaning in _MEANING.items())
            + "."
        )
    _require(word, letters, "K", "kicks", "K (in a word of letters B is damping, not the kick)")
    _require(word, letters, "A", "moves", "A")
    if "O" in letters and set(letters) & set("BN"):
        raise ValueError(
            f"The word {word!r} damps or adds noise twice: the letter O contains both B and N."
        )
    _require(word, letters, "BO", "damps", "B or O")
    _require(word, letters, "NO", "adds noise", "N or O")
    if symmetric and not is_palindrome(letters):
        raise ValueError(
            f"The word {word!r} must be a palindrome to be of second order, but {letters!r} reads "
            f"{letters[::-1]!r} backwards."
        )
    return Integrator(word, letters)


def _require(word: str, letters: str, any_of: str, verb: str, remedy: str) -> None:
    if not set(any_of) & set(letters):
        raise ValueError(f"The word {word!r} never {verb}: it needs the letter {remedy}.")
