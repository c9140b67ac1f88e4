"""``isornn data``: check a data folder, and download published data sets into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.groups import Group
from isornn.cli.options import AsJson
from isornn.cli.progress import bars
from isornn.cli.show import check_folder, errors, print_json, print_table, say

if TYPE_CHECKING:
    from isornn.tasks.fetching import Progress

data = typer.Typer(cls=Group, help="Data files: check a folder, download published sets.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that --data and ISORNN_DATA name.")]


@data.command()
def check(folder: Folder, json: AsJson = False) -> None:
    """Check which files of MNIST, Fashion-MNIST, CIFAR-10, Penn Treebank, texts and time series are in DIR and valid.

    The exit status is 1 if a file is missing or damaged, or if there is nothing.
    """
    from isornn.tasks.checking import check as checked
    from isornn.tasks.known_sets import KNOWN

    check_folder("DIR", folder)
    with errors().status(f"checking {folder}"):
        files = checked(folder)
    absent = [known.name for known in KNOWN if known.name not in {file.data for file in files}]
    if json:
        print_json({"folder": str(folder), "files": [file.to_json() for file in files], "absent": absent})
    else:
        rows = [(file.data, file.file, file.state, file.detail) for file in files]
        print_table(f"Data in {folder}", ("data", "file", "state", "what"), rows)
        if absent:
            print(f"not there: {', '.join(absent)} (isornn data fetch NAME {folder})")
    if not files or any(file.state in ("missing", "damaged") for file in files):
        raise typer.Exit(1)


@data.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="mnist, fashion-mnist, cifar-10, ptb, or the time series ACSF1, ArrowHead, BasicMotions, "
            "GunPoint, ItalyPowerDemand, JapaneseVowels, OSULeaf, PLAID.",
        ),
    ],
    folder: Folder,
    mirror: Annotated[
        list[str] | None, typer.Option("--mirror", metavar="URL", help="Take it from here; may be given again.")
    ] = None,
) -> None:
    """Download a published set into its folder in DIR; an interrupted download is resumed.

    Only files whose checksum is the one that isornn knows are kept.
    """
    from isornn.cells.errors import SpecError
    from isornn.tasks.fetching import fetch as fetched
    from isornn.tasks.known_sets import known

    chosen = known(name)
    if folder.exists() and not folder.is_dir():
        raise SpecError("DIR", str(folder), "it must be a folder")
    for address in mirror or ():
        if "://" not in address:
            raise SpecError("--mirror", address, "it must be an address, as https://HOST/FOLDER")
    say(f"isornn: {chosen.title}: {chosen.terms}")
    with _progress() as progress:
        files = fetched(chosen, folder, mirrors=mirror or (), progress=progress)
    for file in files:
        print(file)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar per file on a terminal's stderr, and nothing elsewhere."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with bars(columns=(DownloadColumn(), TransferSpeedColumn())) as shown:
        yield (lambda name, done, total: None) if shown is None else shown.show
