"""Callbacks of the page: sliders -> spec -> numbers -> cobweb and spectrum; a start -> new sliders.

Fast results come first: the numbers and what depends on them; then, separately, the correlation map and
the spectrum. Each kind of request is run by `Latest`, so a later one cancels the one before.
"""

from __future__ import annotations

from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update, set_props
from dash.exceptions import PreventUpdate

from isornn.cells import cell_named
from isornn.cells.starts import TIMED
from isornn.explorer import work
from isornn.explorer.controls import choices_of, fields_of, moved, opening
from isornn.explorer.latest import Failed, Latest, Superseded
from isornn.explorer.layout import headline, panel, table
from isornn.theory.critical_points.python_line import spec_line


def connect(app: Dash, latest: Latest) -> None:
    """Register all callbacks of the page."""
    _connect_sliders(app)
    _connect_starts(app, latest)
    _connect_numbers(app, latest)
    _connect_cobweb(app, latest)
    _connect_spectrum(app, latest)
    _connect_marks(app)


def _connect_sliders(app: Dash) -> None:
    """In the browser: a slider and its number show the same value; all values are collected when none is moving."""
    app.clientside_callback(
        ClientsideFunction("explorer", "agree"),
        Output({"part": "slider", "path": MATCH, "scale": ALL, "low": ALL}, "value"),
        Output({"part": "number", "path": MATCH}, "value"),
        Input({"part": "slider", "path": MATCH, "scale": ALL, "low": ALL}, "value"),
        Input({"part": "number", "path": MATCH}, "value"),
        State({"part": "slider", "path": MATCH, "scale": ALL, "low": ALL}, "id"),
    )
    app.clientside_callback(
        ClientsideFunction("explorer", "gather"),
        Output("moves", "data"),
        Input({"part": "number", "path": ALL}, "value"),
        Input({"part": "choice", "path": ALL}, "value"),
        State({"part": "number", "path": ALL}, "id"),
        State({"part": "choice", "path": ALL}, "id"),
    )

    @app.callback(
        Output("spec", "data"),
        Output("python", "children"),
        Output("refusal", "children"),
        Input("moves", "data"),
        State("base", "data"),
        prevent_initial_call=True,
    )
    def to_spec(moves: dict[str, Any], base: dict[str, Any]) -> tuple[Any, Any, Any]:
        try:
            spec = moved(work.from_text(base["spec"]), moves)
        except ValueError as refusal:
            return no_update, no_update, str(refusal)
        if {field.path for field in fields_of(spec)} | {choice.path for choice in choices_of(spec)} != set(moves):
            set_props("panel", {"children": panel(spec)})  # an option has brought or taken a field
        text = work.to_text(spec)
        line = base["python"] if base["python"] and text == base["spec"] else spec_line(spec)
        return text, line, ""


def _connect_starts(app: Dash, latest: Latest) -> None:
    @app.callback(
        Output("base", "data"),
        Output("panel", "children"),
        Output("message", "children"),
        Input("cell", "value"),
        Input("critical", "n_clicks"),
        Input("set", "n_clicks"),
        State("start", "value"),
        State("length", "value"),
        State("hidden", "value"),
        State("inputs", "value"),
        State("spec", "data"),
        State("tab", "data"),
        running=[(Output("critical", "disabled"), True, False), (Output("set", "disabled"), True, False)],
        prevent_initial_call=True,
    )
    def begin(
        cell: str, _c: int, _s: int, start: str, length: int, hidden: int, inputs: int, text: str | None, tab: str
    ) -> tuple[Any, Any, str]:
        if ctx.triggered_id == "cell":
            latest.drop(f"{tab} start")
            try:
                opened = work.to_text(opening(cell_named(cell)))
            except ValueError as reason:  # a cell of the user's own that needs options, for instance
                return no_update, no_update, str(reason)
            found: work.Answer = {"spec": opened, "python": None, "unmet": []}
            said = ""
        else:
            if text is None:  # the page has only just been opened
                raise PreventUpdate
            name = "critical" if ctx.triggered_id == "critical" else start
            wrong = _whole_numbers(T=length, N=hidden, D=inputs)
            if wrong:
                return no_update, no_update, wrong
            try:
                found = _asked(latest, f"{tab} start", work.starting_point, name, text, hidden, inputs, length)
            except (ValueError, Failed) as reason:
                return no_update, no_update, str(reason)
            timed = name in ("critical", "isometric", *TIMED)
            said = f"The {name} start" + (f" for T = {length}" if timed else "") + " is set."
            said = "; ".join([said, *found["unmet"]])
        return {"spec": found["spec"], "python": found["python"]}, panel(work.from_text(found["spec"])), said


def _connect_numbers(app: Dash, latest: Latest) -> None:
    """The numbers and the two figures that are derived from them; all other figures wait for these."""

    @app.callback(
        Output("answer", "data"),
        Output("headline", "children"),
        Output("numbers", "children"),
        Output("fading-figure", "figure"),
        Output("fading-caption", "children"),
        Output("time_scales-figure", "figure"),
        Output("time_scales-caption", "children"),
        Input("spec", "data"),
        Input("length", "value"),
        State("tab", "data"),
        prevent_initial_call=True,
    )
    def to_numbers(text: str | None, length: int, tab: str) -> tuple[Any, ...]:
        if text is None:
            raise PreventUpdate
        if type(length) is not int:
            set_props("refusal", {"children": _whole_numbers(T=length)})
            set_props("numbers-of", {"data": f"refused {text} {'' if length is None else length}"})
            return (no_update,) * 7
        latest.drop(f"{tab} figure")
        try:
            found = _asked(latest, f"{tab} numbers", work.numbers, text, length)
        except (ValueError, Failed) as reason:
            set_props("refusal", {"children": str(reason)})
            set_props("numbers-of", {"data": f"refused {text} {length}"})
            for figure in ("cobweb-of", "spectrum-of"):
                set_props(figure, {"data": f"refused {text}"})
            return (no_update,) * 7
        fading, scales = found["fading"], found["time_scales"]
        answer = {"spec": text, "moments": found["moments"], "why": found["why"]}
        set_props("refusal", {"children": ""})
        set_props("numbers-of", {"data": f"{text} {length}"})
        return (
            answer,
            headline(found),
            table(found),
            fading["figure"],
            fading["caption"],
            scales["figure"],
            scales["caption"],
        )


def _connect_cobweb(app: Dash, latest: Latest) -> None:
    @app.callback(
        Output("cobweb-figure", "figure"),
        Output("cobweb-caption", "children"),
        Input("answer", "data"),
        State("tab", "data"),
        prevent_initial_call=True,
    )
    def to_cobweb(answer: dict[str, Any], tab: str) -> tuple[Any, str]:
        if answer["moments"] is None:
            found = work.nothing(answer["why"])
        else:
            found = _drawn(latest, f"{tab} figure cobweb", work.cobweb, answer["spec"], *answer["moments"])
        set_props("cobweb-of", {"data": answer["spec"]})
        return found["figure"], found["caption"]


def _connect_spectrum(app: Dash, latest: Latest) -> None:
    """The spectrum, and until it is there that of simulated networks."""

    @app.callback(
        Output("spectrum-figure", "figure"),
        Output("spectrum-caption", "children"),
        Input("answer", "data"),
        State("tab", "data"),
        prevent_initial_call=True,
    )
    def to_spectrum(answer: dict[str, Any], tab: str) -> tuple[Any, str]:
        found = _drawn(latest, f"{tab} figure spectrum", work.jacobian_spectrum, answer["spec"])
        set_props("spectrum-of", {"data": answer["spec"]})
        return found["figure"], found["caption"]

    @app.callback(
        Output("spectrum-figure", "figure", allow_duplicate=True),
        Output("spectrum-caption", "children", allow_duplicate=True),
        Input("answer", "data"),
        State("tab", "data"),
        prevent_initial_call=True,
    )
    def to_simulated_spectrum(answer: dict[str, Any], tab: str) -> tuple[Any, str]:
        if answer["moments"] is None:
            raise PreventUpdate
        place, second_moment = f"{tab} figure simulated", answer["moments"][0]
        try:
            found = _asked(latest, place, work.simulated_spectrum, answer["spec"], second_moment)
        except (ValueError, Failed):
            raise PreventUpdate from None
        if latest.knows(work.jacobian_spectrum, answer["spec"]):
            raise PreventUpdate
        return found["figure"], found["caption"]


def _connect_marks(app: Dash) -> None:
    """In the browser: results that do not belong to the sliders' current values are marked as being computed.

    Where the current values were refused, the earlier results are greyed and nothing is said to be computed.
    ``set_props`` records the values that a figure belongs to: a callback on an output would wait for it.
    """
    for card, done in (
        ("headline", "numbers-of"),
        ("numbers-card", "numbers-of"),
        ("fading-card", "numbers-of"),
        ("time_scales-card", "numbers-of"),
        ("cobweb-card", "cobweb-of"),
        ("spectrum-card", "spectrum-of"),
    ):
        app.clientside_callback(
            ClientsideFunction("explorer", "mark"),
            Output(card, "className"),
            Input("spec", "data"),
            Input("length", "value"),
            Input(done, "data"),
            State(card, "className"),
        )
    app.clientside_callback(
        ClientsideFunction("explorer", "copy"),
        Output("copy", "children"),
        Input("copy", "n_clicks"),
        Input("python", "children"),
        prevent_initial_call=True,
    )


def _whole_numbers(**given: Any) -> str:
    """A message about whole-number fields with invalid values; the browser leaves them empty."""
    wrong = {name: value for name, value in given.items() if not _is_whole(value, 2 if name == "T" else 1)}
    listed = ", ".join(name if value is None else f"{name} = {value!r}" for name, value in wrong.items())
    return f"{listed}: give a whole number of at least {2 if 'T' in wrong else 1}, at most 1,000,000" if wrong else ""


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= 1_000_000


def _asked(latest: Latest, place: str, function: Any, *arguments: Any) -> work.Answer:
    """The result, or no update if a later request has cancelled this one."""
    try:
        return latest.ask(place, function, *arguments)
    except Superseded:
        raise PreventUpdate from None


def _drawn(latest: Latest, place: str, function: Any, *arguments: Any) -> work.Answer:
    """A figure, or an empty one that gives the reason."""
    try:
        return _asked(latest, place, function, *arguments)
    except (ValueError, Failed) as reason:
        return work.nothing(str(reason))
