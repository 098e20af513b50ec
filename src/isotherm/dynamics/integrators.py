r"""Integrators: the paper's Euler step, and palindromic words over exact sub-flows.

A word is read from left to right; a letter that occurs $n$ times lasts $h/n$ each time, so the
total duration of every piece of the dynamics is $h$. A word that reads the same backwards is a
symmetric composition, and therefore of second order whatever its letters.

The six letters (`dynamics/flows.py`): `A` drift, `D` heating, `B` damping, `K` kick, `N` noise,
`O` damping and noise together. `A` and `D` commute, and so do `K` and `N`: a palindrome is meant up
to swapping such neighbours. Words of the literature go by their names:

| name | letters | |
| --- | --- | --- |
| `"ABOBA"` | `AD·B·KN·B·DA` | the paper's mSGNHT-S (its A heats, its B damps, its O kicks and adds noise) |
| `"BAOAB"`, `"BADODAB"` | `K·AD·O·DA·K` | Leimkuhler & Matthews; with a thermostat, Leimkuhler & Shang |
| `"OBABO"` | `O·K·AD·K·O` | Bussi & Parrinello |
| `"OABAO"` | `O·AD·K·DA·O` | |
| `"ABDODBA"` | `A·K·D·O·D·K·A` | a relative of BADODAB that kicks in the middle |
| `"DOBABOD"` | `D·O·K·A·K·O·D` | a relative that heats at the ends |
| `"euler"` | `A·E·D` | the paper's mSGNHT-E: `E` is an explicit Euler step of the momentum; order 1 |

In most names of the literature B is the kick. In a word of your own the kick is `K`.

**One gradient per step.** A kick needs a gradient only if the position has moved since the last
one; a word that kicks before it drifts uses the gradient that closed the step before (kept in the
state). The very first opening kick has no such gradient and is left out: the chain starts from
a momentum half a kick away.
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
    """A parsed word: its letters, how long each lasts, and where it wants gradients."""

    name: str
    letters: str

    @cached_property
    def order(self) -> int:
        """Weak order of accuracy: 2 for a palindrome, 1 otherwise (`dynamics/order.py` proves it)."""
        return 2 if is_palindrome(self.letters) else 1

    @cached_property
    def carries_gradient(self) -> bool:
        """Whether the gradient that closes a step also opens the next one."""
        kicks = [i for i, letter in enumerate(self.letters) if letter in "KE"]
        drifts = [i for i, letter in enumerate(self.letters) if letter == "A"]
        return kicks[0] < drifts[0] and kicks[-1] > drifts[-1]

    @cached_property
    def segments(self) -> tuple[tuple[tuple[str, float, int], ...], ...]:
        """The word cut at every new gradient, as early as it can be had: after drift and heating.

        What follows them waits for the gradient, so that the momentum goes through memory once
        per step and both dampings of ABOBA share one exponential.
        Each entry is `(letter, fraction of the step, number of the letter in the word)`.
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
        """Gradient evaluations per step."""
        return len(self.segments) - 1

    @property
    def moves_before_gradient(self) -> bool:
        """Whether the first gradient is wanted after a drift."""
        return any(letter == "A" for letter, _, _ in self.segments[0])


def _commuting_family(letter: str) -> str:
    return next((family for family in ("AD", "KN") if letter in family), letter)


def _canonical(letters: str) -> str:
    """Sort neighbours that commute: drift with heating, kick with noise."""
    return "".join("".join(sorted(block)) for _, block in groupby(letters, key=_commuting_family))


def is_palindrome(letters: str) -> bool:
    """Tell whether a word reads the same backwards, up to neighbours that commute.

    Examples
    --------
    >>> is_palindrome("ADBKNBDA"), is_palindrome("ADBKN")
    (True, False)
    """
    return _canonical(letters) == _canonical(letters[::-1])


def parse_integrator(word: str, *, symmetric: bool = True) -> Integrator:
    """Read `"euler"`, a named word or a palindrome over `ADBKNO`; refuse what is not a sampler.

    Parameters
    ----------
    word
        A name from the table above, or letters.
    symmetric
        Whether to insist on a palindrome. Only the order kit says no.

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
    _require(word, letters, "K", "kicks", "K (in your own words B is damping, not the kick)")
    _require(word, letters, "A", "moves", "A")
    if "O" in letters and set(letters) & set("BN"):
        raise ValueError(
            f"The word {word!r} damps or adds noise twice: O already is B and N together."
        )
    _require(word, letters, "BO", "damps", "B or O")
    _require(word, letters, "NO", "adds noise", "N or O")
    if symmetric and not is_palindrome(letters):
        raise ValueError(
            f"The word {word!r} is not a palindrome, so it would be of first order only: "
            f"{letters!r} reads {letters[::-1]!r} backwards."
        )
    return Integrator(word, letters)


def _require(word: str, letters: str, any_of: str, verb: str, remedy: str) -> None:
    if not set(any_of) & set(letters):
        raise ValueError(f"The word {word!r} never {verb}: it needs the letter {remedy}.")
