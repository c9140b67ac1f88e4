"""Commands as the shell calls them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app

PEEPHOLE = {
    "cell": "peephole",
    "gates": {
        "i": {"weight_var": 2, "input_var": 0.5, "bias_mean": 0.5},
        "f": {"weight_var": 4, "input_var": 1, "bias_var": 0.1, "bias_mean": 2},
        "g": {"weight_var": 3, "input_var": 0.5},
    },
}
SIZES = ("--hidden", "128", "--inputs", "49")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def answer(*arguments: object) -> dict[str, Any]:
    """The one JSON object on stdout, from a call that says nothing else."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def refusal(*arguments: object) -> str:
    """The one line on stderr of a call that is refused."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1
    return result.stderr
