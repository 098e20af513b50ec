"""The experiments of the paper, one module per figure or table, and the interface they all have.

An experiment is a module, listed in `registry.EXPERIMENTS`, with exactly these public names:

`__doc__`
    The first line is the question that the experiment answers. It is the heading in the report and
    the help on the command line. The rest is prose for the report: paragraphs, lists whose lines
    start with ``- ``, `` `code` ``, ``*emphasis*`` and simple ``$maths$`` (Greek letters, sub- and
    superscripts; anything more is shown as source). The question and the claims are also shown in
    a terminal, so write h² there instead of ``$h^2$``.
`Config`
    A frozen dataclass with everything that changes the numbers, apart from the seed. Every field
    has a default and is of type `int`, `float`, `bool`, `str` or a tuple of one of them
    (`tuple[float, ...]`), so that ``--set key=value`` can be checked. `__post_init__` may raise a
    `ValueError`.
`SMOKE`
    A `Config` for a run of a few seconds.
`run(config, key, report) -> dict[str, np.ndarray]`
    The computation. It has no side effect except `report(message)`, which reports progress and may
    do nothing. `key` is `jax.random.key(seed)`. The arrays become `result.npz`. An experiment that
    takes more than some minutes has a fourth argument, `checkpoints`: it saves every finished part
    there, and loads it from there before it computes one, so that ``--resume`` works.
`rows(config, result) -> list[dict]`
    The table: one flat dict per row, all with the same keys. Numbers have their spread beside them
    and, in a column whose name contains ``paper``, the number in the paper (`None` if there is
    none). NumPy scalars are allowed; NaN becomes null and an infinity a string.
`check(config, result) -> list[Claim]`
    The claims of the paper, checked. The exit code is 0 only if all hold. Limits may depend on
    `config`, since a smoke run has larger Monte Carlo errors.
`plot(config, result) -> dict[str, Figure]`
    Figures by name (a file name without its ending). It draws and does not compute. The runner
    calls it with the common style. Create figures with `isotherm.paper.report.figures.panels`,
    since pyplot keeps all of them in memory. `figure.set_label(...)` sets the caption and text
    alternative; without it they are composed of the axis labels.

`runner.execute` does the rest: configuration, timing, files and the page fragment.
"""
