from pathlib import Path

import pytest

from tests.diagnose.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
