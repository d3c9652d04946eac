from __future__ import annotations

import pytest
import safetensors
from make_checkpoint_headers import CASES, FOLDER

from featurecontract.checkpoint import open_checkpoint
from featurecontract.errors import InputError

#: What safetensors 0.8 lets pass and is refused here, with the reason in the module's docstring.
STRICTER = {"duplicate-name", "leading-space", "metadata-null"}


def test_the_files_are_those_of_the_script():
    found = {path.stem: path.read_bytes() for path in FOLDER.glob("*.safetensors")}
    assert found == {name: content for name, (content, _) in CASES.items()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_hostile_header_gets_one_line_that_names_the_fault(name, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    path.write_bytes((FOLDER / f"{name}.safetensors").read_bytes())
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert CASES[name][1] in message
    assert message.isprintable()
    assert len(message) < 1200
    assert caught.value.problems[-1].next_step


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_library_refuses_the_same_files(name):
    def read() -> None:
        with safetensors.safe_open(FOLDER / f"{name}.safetensors", framework="numpy"):
            pass

    if name in STRICTER:
        read()
    else:
        with pytest.raises((safetensors.SafetensorError, OSError)):
            read()
