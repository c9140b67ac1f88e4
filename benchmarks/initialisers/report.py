"""The protocol's table, its figure, and what is claimed of `critical_`."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import torch
from kept import Asked, Kept, Known
from predict import between_seeds, correlation
from protocol import CORE_GOALS, CORE_MODULES, CORE_STARTS, GOALS, OURS, SEEDS
from race import Result
from rich.console import Console
from rich.table import Table

from isornn.cells.starts import IN_USE
from isornn.figures import Curve, Mark, Panel
from isornn.present import draw_panels

OTHERS = tuple(name for name in CORE_STARTS if name not in OURS)
CORE = tuple((goal, module) for goal in CORE_GOALS for module in CORE_MODULES)
OF_OLD = ("torch", "standard")
MEASURED = ("critical_for_batch", "critical")  # those of ours that know how large inputs are
FLOSSING = "gradient_flossing"
RATIO, WORST, SCALED, LONG, RANKED = 0.5, 1.1, 0.7, 500, 0.85
ByStart = Mapping[str, Result]
ByCell = Mapping[tuple[str, str], ByStart]


def report(results: Sequence[Result], kept: Kept[Known], figure: Path) -> None:
    """Print the table and the claims; draw the curves."""
    console = Console(width=120)
    console.print(f"{platform.machine()}, torch {torch.__version__}, one thread a run; {len(SEEDS)} seeds")
    console.print(_table(results))
    by_cell: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        by_cell.setdefault((result.place.goal, result.place.module), {})[result.place.start] = result
    for ours in OURS:
        wanted = {ours, *OTHERS}
        whole = {
            cell: {name: by_start[name] for name in CORE_STARTS if name in wanted}
            for cell, by_start in by_cell.items()
            if wanted <= by_start.keys()
        }
        console.print(f"\n[bold]{ours}[/bold]")
        for line in _claims(ours, {cell: by_start for cell, by_start in whole.items() if cell in CORE}):
            console.print(line)
        for line in [*_against_in_use(ours, by_cell), *_against_told(ours, by_cell)] if ours in MEASURED else []:
            console.print(line)
        for line in _wider(ours, {cell: by_start for cell, by_start in whole.items() if cell not in CORE}):
            console.print(line)
    for line in _of_flossing(by_cell, kept):
        console.print(line)
    if by_cell:
        # of told starts only numbers are shown: more curves than colours can be told apart in no panel
        panels = [
            _panel(cell, {name: by_start[name] for name in CORE_STARTS if name in by_start}, kept)
            for cell, by_start in by_cell.items()
        ]
        draw_panels("Validation over updates, median of seeds, each start at its best rate", panels, figure)


def _table(results: Sequence[Result]) -> Table:
    table = Table("goal", "module", "start", "rate", "updates", "reached", "final", "diverged")
    for result in results:
        place, goal = result.place, GOALS[result.place.goal]
        ended = sorted(result.final)
        table.add_row(
            place.goal,
            place.module,
            place.start,
            f"{result.rate:g}",
            f"{result.median:.0f} ({min(result.updates):.0f} to {max(result.updates):.0f})"
            + ("" if all(result.reached) else f"; {goal.budget} is the budget"),
            f"{sum(result.reached)} of {len(result.reached)}",
            f"{median(ended):.3g} ({ended[0]:.3g} to {ended[-1]:.3g})" if ended else "none",
            str(result.diverged),
        )
    return table


def ratio(ours: str, by_start: ByStart, others: Sequence[str] = OTHERS) -> tuple[float, str] | None:
    """Updates of ours over the best other start's, and its name; ``None`` where no start reaches the threshold."""
    best = min(others, key=lambda name: by_start[name].median)
    if sum(by_start[ours].reached) == 0 and sum(by_start[best].reached) == 0:
        return None
    return by_start[ours].median / by_start[best].median, best


def _claims(ours: str, whole: ByCell) -> list[str]:
    ratios = {cell: ratio(ours, by_start) for cell, by_start in whole.items()}
    lines = [_compared(cell, found) for cell, found in ratios.items()]
    missing = len(CORE) - len(whole)
    lines += [f"{missing} of {len(CORE)} cells are not known yet"] * (missing > 0)
    values = [found[0] for found in ratios.values() if found is not None]
    if not values:
        return lines
    diverged = sum(by_start[ours].diverged for by_start in whole.values())
    return [
        *lines,
        _claim(f"median ratio {median(values):.2f}, wanted at most {RATIO}", median(values) <= RATIO),
        _claim(f"worst ratio {max(values):.2f}, wanted at most {WORST}", max(values) <= WORST),
        _claim(f"{diverged} runs of {ours} diverged at its best rate, wanted none", diverged == 0),
        *_long(ours, whole),
        *_ranked(whole),
    ]


def _against_in_use(ours: str, by_cell: ByCell) -> list[str]:
    """The other starts of the core set, and those of libraries in use."""
    wanted = (*OTHERS, *IN_USE)
    ratios = {
        cell: ratio(ours, by_cell[cell], wanted) for cell in CORE if {ours, *wanted} <= by_cell.get(cell, {}).keys()
    }
    values = [found[0] for found in ratios.values() if found is not None]
    if not values:
        return []
    middle, worst = median(values), max(values)
    return [
        "against all others and those of libraries in use",
        *(_compared(cell, found) for cell, found in ratios.items()),
        f"{len(CORE) - len(ratios)} of {len(CORE)} cells are not known yet",
        _claim(f"median ratio {middle:.2f}, wanted at most {RATIO}", middle <= RATIO),
        _claim(f"worst ratio {worst:.2f}, wanted at most {WORST}", worst <= WORST),
    ]


def _against_told(ours: str, by_cell: ByCell) -> list[str]:
    """Were the other starts told how large inputs are as well; where their mean square is 1 that is no news."""
    ratios = {}
    for cell in CORE:
        by_start = by_cell.get(cell, {})
        told = (
            OTHERS if GOALS[cell[0]].mean_square == 1 else tuple(f"{name}_told" for name in OTHERS if name != "torch")
        )
        if {ours, *told} <= by_start.keys():
            ratios[cell] = ratio(ours, by_start, told)
    values = [found[0] for found in ratios.values() if found is not None]
    if not values:
        return []
    lines = ["against others that are told the mean square of inputs as well"]
    lines += [_compared(cell, found) for cell, found in ratios.items()]
    middle = median(values)
    claim = _claim(f"median ratio {middle:.2f}, wanted at most {SCALED}; worst {max(values):.2f}", middle <= SCALED)
    return [*lines, f"{len(CORE) - len(ratios)} of {len(CORE)} cells are not known yet", claim]


def _of_flossing(by_cell: ByCell, kept: Kept[Known]) -> list[str]:
    """Gradient flossing starts from torch's start, and takes time before the first update."""
    lines: list[str] = []
    for cell, by_start in by_cell.items():
        if {FLOSSING, "torch", OURS[0]} <= by_start.keys():
            result = by_start[FLOSSING]
            runs = [kept.get(Asked(result.place, result.rate, seed)) for seed in SEEDS]
            own = median(
                run.seconds_before / run.seconds * run.updates[-1]
                for run in runs
                if run is not None and run.seconds_before is not None
            )
            lines.append(
                f"{' '.join(cell)}: {result.median:.0f} updates ({sum(result.reached)} of {len(SEEDS)} reach the "
                f"threshold), its own time that of {own:.0f} more; from torch's start alone "
                f"{by_start['torch'].median:.0f}, {OURS[0]} {by_start[OURS[0]].median:.0f}"
            )
    return ["", f"[bold]{FLOSSING}[/bold]", *lines] if lines else []


def _wider(ours: str, whole: ByCell) -> list[str]:
    """Beyond the core set, with no claim made."""
    lines = ["beyond the core set"] if whole else []
    for cell, by_start in whole.items():
        rank = correlation(list(by_start.values()))
        ranked = "" if rank is None else f"; rank correlation {rank:.2f}"
        lines.append(_compared(cell, ratio(ours, by_start)) + ranked)
    return lines


def _compared(cell: tuple[str, str], found: tuple[float, str] | None) -> str:
    told = "no start reaches the threshold" if found is None else f"{found[0]:.2f} times the updates of {found[1]}"
    return f"{' '.join(cell)}: {told}"


def _long(ours: str, whole: ByCell) -> list[str]:
    """Where the old starts stay below the threshold over long sequences: does ours train?"""
    lines = []
    for cell, by_start in whole.items():
        stuck = all(not any(by_start[name].reached) for name in OF_OLD)
        if GOALS[cell[0]].length >= LONG and stuck:
            reached = sum(by_start[ours].reached)
            lines.append(_claim(f"{' '.join(cell)}: {reached} of {len(SEEDS)} seeds train", reached == len(SEEDS)))
    return lines


def _ranked(whole: ByCell) -> list[str]:
    """How well theory knew the order of starts before they were trained."""
    by_cell = {cell: correlation(list(by_start.values())) for cell, by_start in whole.items()}
    plain = [correlation(list(by_start.values()), by_updates_alone=True) for by_start in whole.values()]
    known = {cell: value for cell, value in by_cell.items() if value is not None}
    told = ", ".join(f"{' '.join(cell)} {value:.2f}" for cell, value in known.items())
    middle = median(known.values())
    alone = median(value for value in plain if value is not None)
    by_seeds = [value for by_start in whole.values() if (value := between_seeds(list(by_start.values()))) is not None]
    return [
        f"rank correlation of predicted and measured order: {told}",
        f"of the orders that two of the seeds give: in the median {median(by_seeds):.2f}, at worst {min(by_seeds):.2f}",
        _claim(
            f"in the median {middle:.2f}, wanted at least {RANKED} (by updates alone {alone:.2f})", middle >= RANKED
        ),
    ]


def _claim(text: str, holds: bool) -> str:
    return f"{'holds' if holds else 'does NOT hold'}: {text}"


def _panel(cell: tuple[str, str], by_start: ByStart, kept: Kept[Known]) -> Panel:
    goal = GOALS[cell[0]]
    curves = []
    for name, result in by_start.items():
        runs = [kept.get(Asked(result.place, result.rate, seed)) for seed in SEEDS]
        known = [run for run in runs if run is not None and run.diverged is None]
        if known:
            middle = [median(values) for values in zip(*(run.values for run in known), strict=True)]
            curves.append(Curve(known[0].updates, middle, name, colour=list(CORE_STARTS).index(name)))
    return Panel(", ".join(cell), "update", goal.metric, tuple(curves), marks=(Mark("y", goal.threshold),))
