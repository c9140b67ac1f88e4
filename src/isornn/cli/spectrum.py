"""``isornn spectrum``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import (
    NO_INPUT,
    AllowImport,
    AsJson,
    CellName,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    whole,
    with_input_options,
)
from isornn.cli.show import check_writable, errors, print_json, print_table, say
from isornn.formatting import with_error_of

if TYPE_CHECKING:
    from isornn.theory.spectra import SpectralDensity

_SHARES = (0.01, 0.5, 0.99, 0.999)
# What benchmarks/spectrum.py has measured against drawn networks.
_SAMPLED = (
    "Quantiles are of sampled units, without standard errors: the shares below them are right to about 1.2 % of all "
    "values, and the 99.9 % quantile to about 2 %."
)


@with_input_options
def spectrum(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC.json]", help="A spec file; or --cell.")] = None,
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    init: Annotated[
        str | None, typer.Option("--init", metavar="START", help="torch (default), standard, chrono, critical, ...")
    ] = None,
    length: Length = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="K", parser=whole, help="Number of steps in the product of Jacobians.")
    ] = 1,
    law: GivenInput = NO_INPUT,
    allow_import: AllowImport = None,
    json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the density (.png, .pdf or .svg).")
    ] = None,
) -> None:
    """The density of the squared singular values of the state-to-state Jacobian, or of a product of them, at infinite
    width."""
    from isornn.cli.ask import alone, input_law, loaded, named_cell, started
    from isornn.theory.spectra import spectrum as density_of

    check_writable("--plot", plot, (".png", ".pdf", ".svg"))
    with errors().status("solving for the spectrum"):
        if spec is not None:
            alone(cell=cell, hidden=hidden, inputs=inputs, init=init, length=length)
            found = density_of(loaded(spec, law, allow_import), steps=steps)
        else:
            name = "torch" if init is None else init
            at_start = started(name, named_cell(cell), hidden, inputs, length, input_law(law))
            found = density_of(at_start, steps=steps)
    if json:
        print_json(found.to_json())
    else:
        _print(found)
    if plot is not None:
        from isornn.present import draw_spectrum

        draw_spectrum(found, plot)
        say(f"isornn: figure in {plot}")


def _print(found: SpectralDensity) -> None:
    low, high = found.edges
    rows = [
        ("mean m1", with_error_of(found.mean, found.stderr.get("mean"))),
        ("variance m2 - m1^2", with_error_of(found.variance, found.stderr.get("variance"))),
        ("lower edge", with_error_of(low)),
        ("upper edge", "none: the density fades out" if high is None and len(found.x) else with_error_of(high)),
        *((f"mass at {with_error_of(atom.place)}", with_error_of(atom.mass)) for atom in found.atoms),
        *((f"{100 * share:g} % are below", with_error_of(found.quantile(share))) for share in _SHARES),
    ]
    of = "the Jacobian" if found.steps == 1 else f"{found.steps} steps' Jacobian"
    title = f"{found.spec.cell.name}: squared singular values of {of} (residual {found.residual:.1g})"
    print_table(title, ("quantity", "value"), rows)
    if any(found.stderr.values()):
        print(_SAMPLED)
