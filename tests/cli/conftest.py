import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[Any], Path]:
    def write(data: Any) -> Path:
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        return file

    return write
