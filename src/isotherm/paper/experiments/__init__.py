"""One module per figure or table of the paper; this page is the contract they all follow.

An experiment is a module, listed in `registry.EXPERIMENTS`, with exactly these public names:

`__doc__`
    The first line is the question the experiment answers: it becomes the heading in the report
    and the help on the command line. The rest is prose for the report: paragraphs, lists whose
    lines start with ``- ``, `` `code` ``, ``*emphasis*`` and simple ``$maths$`` (Greek letters,
    sub- and superscripts; anything more is shown as source). The question and the claims are shown
    in a terminal too, so there write h² rather than ``$h^2$``.
`Config`
    A frozen dataclass: everything that changes the numbers, apart from the seed. Every field has
    a default and one of the types `int`, `float`, `bool`, `str` or a tuple of one of them
    (`tuple[float, ...]`), so that ``--set key=value`` can be checked against it. A
    `__post_init__` may raise `ValueError`s.
`SMOKE`
    A `Config` that ends in seconds.
`run(config, key, say) -> dict[str, np.ndarray]`
    The computation, pure but for `say(message)`, which reports progress and may do nothing. `key`
    is `jax.random.key(seed)`. The arrays become `result.npz`. An experiment of more than some
    minutes takes a fourth argument, `shelf`, saves each finished piece there and looks there before it
    computes one: then ``--resume`` works.
`rows(config, result) -> list[dict]`
    The table: one flat dict per row, all with the same keys; every number has its spread and, in a
    column whose name contains ``paper``, the number the paper gives (`None` where it gives none).
    NumPy scalars are welcome; NaN becomes null and an infinity a string.
`check(config, result) -> list[Claim]`
    The paper's claims as code. They hold or they do not: the exit code obeys them. The limits may
    depend on `config`, since a smoke run has larger Monte Carlo errors.
`plot(config, result) -> dict[str, Figure]`
    Figures by name (a file name without its ending). It never computes. The runner calls it under
    the house style; `isotherm.paper.report.figures.panels` makes figures without pyplot, which would
    keep them all alive. `figure.set_label(...)` gives the caption and text alternative;
    without it they are put together from the axis labels.

`runner.execute` does all the rest: configuration, timing, files and the page fragment.
"""
