"""Layout of the page."""

from __future__ import annotations

import uuid
from typing import Any

from dash import dcc, html

from isornn.cells import CELLS, FURTHER_CELLS, Spec, full_name
from isornn.cells.roles import roles_of
from isornn.cells.starts import STARTS
from isornn.explorer.controls import NETWORK, Choice, Field, choices_of, fields_of
from isornn.explorer.work import nothing, to_text

LENGTH, HIDDEN, INPUTS = 500, 128, 49
_ROLES = {"remember": "retention", "write": "write", "candidate": "candidates"}  # fields of `Roles` by their word
_FIGURES = {
    "fading": "Response to a perturbation",
    "cobweb": "Correlation map",
    "spectrum": "Jacobian spectrum",
    "time_scales": "Time scales of units",
}


def page(spec: Spec) -> html.Div:
    """The whole page, opened at ``spec``; every tab has its own identifier."""
    stores = {
        "tab": uuid.uuid4().hex,
        "base": {"spec": to_text(spec), "python": None, "length": None},
        "moves": None,
        "spec": None,
        "answer": None,
        "numbers-of": None,
        "cobweb-of": None,
        "spectrum-of": None,
    }
    return html.Div(
        [
            *(dcc.Store(id=name, data=data) for name, data in stores.items()),
            html.Header(
                [html.H1("isornn explore"), html.P("How far does a recurrent network see before it is trained?")]
            ),
            html.Div([_controls(spec), _answers()], className="columns"),
        ],
        className="page",
    )


def _controls(spec: Spec) -> html.Aside:
    return html.Aside(
        [
            html.Section(
                [
                    _labelled("cell", _dropdown("cell", "cell", _cells(spec), full_name(spec.cell))),
                    html.Div(
                        [
                            _labelled("wanted length T", _whole("length", LENGTH, 2, 1_000_000)),
                            html.Button("Critical start", id="critical", className="primary"),
                        ],
                        className="pair",
                    ),
                    html.Details(
                        [
                            html.Summary("another start"),
                            html.Div(
                                [
                                    _labelled("units N", _whole("hidden", HIDDEN, 1, 1_000_000)),
                                    _labelled("inputs D", _whole("inputs", INPUTS, 1, 1_000_000)),
                                ],
                                className="pair",
                            ),
                            html.Div(
                                [
                                    _labelled(
                                        "start",
                                        _dropdown("start", "start", [*STARTS, "isometric"], "torch"),
                                    ),
                                    html.Button("Set", id="set"),
                                ],
                                className="pair",
                            ),
                        ]
                    ),
                    html.P(id="message", className="message", role="status"),
                    html.P(id="refusal", className="message", role="alert"),
                ],
                className="card",
            ),
            html.Div(panel(spec), id="panel"),
        ],
    )


def _cells(spec: Spec) -> list[str]:
    """The catalogue's, and the one that the page opens with where that is the user's own."""
    return list(dict.fromkeys([*CELLS, *FURTHER_CELLS, full_name(spec.cell)]))


def panel(spec: Spec) -> list[Any]:
    """The sliders and choices of one spec: the network's, then each gate's."""
    groups: dict[str, list[Any]] = {NETWORK: [_chooser(choice) for choice in choices_of(spec)]}
    for field in fields_of(spec):
        groups.setdefault(field.group, []).append(_mover(field))
    return [
        html.Fieldset([html.Legend(_title(spec, group)), *rows], className="card") for group, rows in groups.items()
    ]


def _title(spec: Spec, group: str) -> list[Any]:
    if group == NETWORK:
        return ["network and input"]
    known = roles_of(spec.cell)
    roles = [word for word, role in _ROLES.items() if group in getattr(known, role)]
    return [html.B(f"gate {group}"), html.Span(", ".join(roles), className="role")]


def _mover(field: Field) -> html.Div:
    """A slider and next to it a number field for the same value."""
    per = 10 if field.scale != "linear" else 1
    low, high = field.low * per - (field.scale == "decades and 0"), field.high * per
    slider = {"part": "slider", "path": field.path, "scale": field.scale, "low": field.low}
    number = {"part": "number", "path": field.path}
    return html.Div(
        [
            html.Label(
                [
                    html.Span(field.label),
                    dcc.Input(id=slider, type="range", min=low, max=high, step=field.step, value=low),
                ]
            ),
            html.Label(
                [
                    html.Span(f"{field.label}, as a number", className="unseen"),
                    dcc.Input(id=number, type="number", value=field.value, step="any", debounce=0.3),
                ]
            ),
        ],
        className="mover",
    )


def _chooser(choice: Choice) -> html.Div:
    words = _dropdown({"part": "choice", "path": choice.path}, choice.label, [*choice.words], choice.value)
    return html.Div([html.Span(choice.label), words], className="chooser")


def _answers() -> html.Main:
    return html.Main(
        [
            html.Section(id="headline", className="card headline", role="status"),
            html.Section(
                [
                    html.Div(
                        [html.H2("Python"), html.Button("Copy", id="copy")],
                        className="title",
                    ),
                    html.Pre(html.Code(id="python")),
                ],
                className="card",
            ),
            html.Div([_figure_card(name, title) for name, title in _FIGURES.items()], className="figures"),
            html.Section([html.H2("All numbers"), html.Div(id="numbers")], id="numbers-card", className="card"),
        ]
    )


def _figure_card(name: str, title: str) -> html.Section:
    return html.Section(
        [
            html.Div([html.H2(title), html.Span("computing", className="working")], className="title"),
            dcc.Graph(
                id=f"{name}-figure",
                config={"displayModeBar": False},
                className="graph",
                style={"height": 300},
                figure=nothing("")["figure"],
            ),
            html.P(id=f"{name}-caption", className="caption"),
        ],
        id=f"{name}-card",
        className="card",
    )


def headline(answer: dict[str, Any]) -> list[Any]:
    """xi and the reach, large, with their errors or reasons, and the reach compared with T."""
    large = {reading["name"]: reading for reading in answer["readings"]}
    return [
        html.Div([_large(large["xi"]), _large(large["reach"])], className="large"),
        html.P(answer["against"], className="against"),
    ]


def _large(reading: dict[str, str]) -> html.Div:
    return html.Div(
        [
            html.Div([html.B(reading["symbol"]), html.Span(reading["meaning"])], className="meaning"),
            html.Div(
                [
                    html.Span(reading["value"], className="word" if reading["why"] else "value"),
                    html.Span(reading["sure"], className="sure"),
                ],
                id=f"{reading['name']}-value",
            ),
            html.Div(reading["why"], className="why"),
        ]
    )


def table(answer: dict[str, Any]) -> html.Table:
    """All readings."""
    rows = [
        html.Tr(
            [
                html.Th(reading["symbol"], scope="row"),
                html.Td(reading["value"], className="value"),
                html.Td(reading["sure"], className="sure"),
                html.Td([reading["meaning"], html.Div(reading["why"], className="why") if reading["why"] else None]),
            ]
        )
        for reading in answer["readings"]
    ]
    return html.Table(html.Tbody(rows))


def _labelled(label: str, control: Any) -> html.Label:
    return html.Label([html.Span(label), control], className="labelled")


def _whole(name: str, value: int, low: int, high: int) -> dcc.Input:
    return dcc.Input(id=name, type="number", value=value, min=low, max=high, step=1, debounce=True)


def _dropdown(name: str | dict[str, str], label: str, words: list[str], value: str) -> html.Div:
    """In a group of its label's name: Dash names the control after its value alone, which no label element changes."""
    chooser = dcc.Dropdown(words, value, id=name, clearable=False, searchable=False)
    named: dict[str, Any] = {"aria-label": label}
    return html.Div(chooser, role="group", **named)
