from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from contract_values import FULL, MINIMAL, changed

from featurecontract.contract import (
    CONTRACT_FILE,
    atomic_write,
    canonical_json,
    contract_from_dict,
    contract_path,
    digest,
    dumps,
    load,
    loads,
    save,
)
from featurecontract.errors import InputError


def contract(value=FULL):
    return contract_from_dict(value, source="c")


def test_canonical_form():
    assert canonical_json({"b": [1, 2.5, None], "a": {"é": "ß"}}) == (
        b'{\n  "a": {\n    "\xc3\xa9": "\xc3\x9f"\n  },\n  "b": [\n    1,\n    2.5,\n    null\n  ]\n}\n'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@pytest.mark.parametrize("value", [MINIMAL, FULL, changed(FULL, "contract_version", "1.9")])
def test_load_and_dump_are_inverse(value):
    first = contract(value)
    data = dumps(first)
    assert loads(data) == first
    assert dumps(loads(data)) == data
    assert data.endswith(b"}\n")
    assert json.loads(data) == json.loads(canonical_json(json.loads(data)))


def test_the_digest_is_of_the_canonical_bytes_whatever_the_spelling():
    shuffled = dict(reversed(FULL.items()))
    spelled = json.dumps(shuffled, indent=7).replace("2.5", "25e-1").encode()
    assert digest(loads(spelled)) == digest(contract()) == hashlib.sha256(dumps(contract())).hexdigest()
    assert digest(contract(changed(FULL, "features[0].boundary", 1))) != digest(contract())


def test_the_digest_of_the_smallest_contract_never_changes():
    """Recorded once: another value means that every contract in the world gets a new identity."""
    assert digest(contract(MINIMAL)) == "812ba51ab0cc2286c1cc68348ad5ad092097fbacc40c1811df7aa5944e1ee54d"


def test_defaults_are_written_out():
    written = json.loads(dumps(contract(MINIMAL)))
    assert written["alignment"] == {"token_shift": 1, "position_offset": 0}
    assert written["features"][0]["state"] == "residual"
    assert "rope" not in written


# --- files --------------------------------------------------------------------------------------------------------


def test_a_contract_is_found_beside_its_checkpoint_or_by_name(tmp_path):
    assert save(contract(), tmp_path) == tmp_path / CONTRACT_FILE
    assert load(tmp_path) == load(tmp_path / CONTRACT_FILE) == load(str(tmp_path)) == contract()
    assert contract_path(tmp_path / "other.json") == tmp_path / "other.json"


@pytest.mark.parametrize("name", ["", "absent", "absent/feature_contract.json", "feature_contract.json/x"])
def test_no_contract_is_its_own_error(tmp_path, name):
    with pytest.raises(InputError, match=r"there is no feature contract here; write one with `featurecontract init"):
        load(tmp_path / name)
    with pytest.raises(InputError) as caught:
        load(tmp_path / name)
    assert caught.value.slug == "contract-missing"


@pytest.mark.parametrize("name", ["n" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_one_error(tmp_path, name):
    with pytest.raises(InputError, match="cannot be opened"):
        load(tmp_path / name)


def test_broken_files_name_themselves(tmp_path):
    (tmp_path / CONTRACT_FILE).write_text('{"name": ')
    with pytest.raises(InputError, match=r"feature_contract\.json: line 1 column 10: is not valid JSON") as caught:
        load(tmp_path)
    assert caught.value.slug == "contract-invalid"
    (tmp_path / CONTRACT_FILE).unlink()
    os.mkfifo(tmp_path / CONTRACT_FILE)
    with pytest.raises(InputError, match="is a FIFO"):
        load(tmp_path)


def test_a_contract_that_could_not_be_read_back_is_not_written(tmp_path):
    from dataclasses import replace

    whole = contract()
    with pytest.raises(InputError, match=r"the contract to save: features\[0\]\.dim: is missing"):
        save(replace(whole, features=whole.wiring.with_dim(None).features), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    path = save(contract(), tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_an_interrupted_save_leaves_the_old_file(tmp_path, error):
    path = save(contract(), tmp_path)
    before = path.read_bytes()

    def interrupted() -> None:
        with atomic_write(path) as stream:
            stream.write(b"{half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = save(contract(MINIMAL), tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save(contract(), tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_save_leaves_the_old_file(tmp_path):
    path = save(contract(), tmp_path)
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from featurecontract.contract import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as stream:\n"
        "    stream.write(b'{half')\n"
        "    stream.flush()\n"
        "    print('half', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        process.kill()
    assert load(tmp_path) == contract()
    assert save(contract(MINIMAL), tmp_path) == path
    assert load(tmp_path) == contract(MINIMAL)


def test_readers_see_the_old_file_or_the_new_one(tmp_path):
    path = save(contract(), tmp_path)
    script = (
        "import sys\n"
        "from featurecontract.contract import load, save\n"
        "first, second = load(sys.argv[1]), load(sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "for _ in range(200):\n"
        "    save(first, sys.argv[1])\n"
        "    save(second, sys.argv[1])\n"
    )
    (tmp_path / "second").mkdir()
    other = save(contract(MINIMAL), tmp_path / "second")
    sizes = {len(path.read_bytes()), len(other.read_bytes())}
    command = [sys.executable, "-c", script, str(path), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        end = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < end:
            assert len(path.read_bytes()) in sizes
        process.kill()
