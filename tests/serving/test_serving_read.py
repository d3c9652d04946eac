"""Reading ``--serve-args``: command lines and files, strict and bounded."""

from __future__ import annotations

import builtins
import contextlib
import os
import time

import pytest

from featurecontract.errors import InputError, UsageError
from featurecontract.serving import Flag, read_arguments

LINE = "SGLANG_SIMULATE_ACC_LEN=4 python -m sglang.launch_server --model-path /m --speculative-num-steps 3"


def flags(text):
    return [(item.name, item.value) for item in read_arguments(text).flags]


def test_a_command_line():
    arguments = read_arguments(LINE)
    assert arguments.source == "--serve-args"
    assert dict(arguments.environment) == {"SGLANG_SIMULATE_ACC_LEN": "4"}
    assert arguments.positional == ("python",)
    assert arguments.flags == (
        Flag("-m", "sglang.launch_server"),
        Flag("--model-path", "/m"),
        Flag("--speculative-num-steps", "3"),
    )
    assert arguments.speculative is None
    assert arguments.layers_to_capture is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("--a 1 --b=2 --c", [("--a", "1"), ("--b", "2"), ("--c", None)]),
        ('--a \'x y\' --b "x \\" $V" --c x\\ y', [("--a", "x y"), ("--b", 'x " $V'), ("--c", "x y")]),
        ("--a $VAR --b ${V}/x", [("--a", "$VAR"), ("--b", "${V}/x")]),
        ("--a -1 --b", [("--a", "-1"), ("--b", None)]),
        ("--a \\\n 1 \\\r\n --b 2", [("--a", "1"), ("--b", "2")]),
        ("--a 1 # --b 2 isn't read\n--c 3", [("--a", "1"), ("--c", "3")]),
        ("--a x#y", [("--a", "x#y")]),
        ("--a 1; --b 2 && --c 3 | tee log", [("--a", "1"), ("--b", "2"), ("--c", "3")]),
        ("--speculative_num_steps 3", [("--speculative-num-steps", "3")]),
        ("--speculative-adaptive --tp 2", [("--speculative-adaptive", None), ("--tp", "2")]),
        ("--a ''", [("--a", "")]),
        ("-", []),
        ("--", []),
    ],
)
def test_words(text, wanted):
    assert flags(text) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--speculative-num-steps 'x", "--speculative-num-steps: the quote or backslash on line 1 is not closed"),
        ('--x 1 \\\n --y "', "--y: the quote or backslash on line 2 is not closed"),
        ("--x \\", "--x: the quote or backslash on line 1 is not closed"),
        ("--speculative-num-steps", "--speculative-num-steps needs a value"),
        ("--speculative-num-steps --tp 8", "--speculative-num-steps needs a value"),
        ("--speculative-config", "--speculative-config needs a value"),
        ("--speculative-config.method", "--speculative-config.method needs a value"),
        ("--speculative-num-steps x", "--speculative-num-steps: 'x' is not an integer"),
        ("--speculative-num-steps 1.5", "--speculative-num-steps: '1.5' is not an integer"),
        ("--speculative-num-steps ''", "--speculative-num-steps: '' is not an integer"),
        (f"--speculative-num-steps {'9' * 5000}", f"--speculative-num-steps: '{'9' * 56}... is not an integer"),
        (
            "--speculative-num-steps $N",
            "--speculative-num-steps: '$N' is not an integer; write the value in place of the variable",
        ),
        ("'--x\ny' '", "--serve-args: the quote or backslash on line 2 is not closed"),
        ("-sc '[1]'", "-sc: '[1]' is not a JSON object"),
        ("--speculative-config.a.b 1 --speculative-config.a 2 --speculative-config.a.c 3", "'a' already has a value"),
        ("--speculative-config..a 1", "--speculative-config..a is not a dotted key"),
        ("@", "@ needs a file name"),
        ("x" * (1024 * 1024 + 1), "longer than 1048576 characters"),
        ("x " * 20_001, "more than 20000 words"),
    ],
)
def test_what_is_refused_names_the_flag_on_one_line(text, message):
    with pytest.raises(UsageError) as caught:
        read_arguments(text)
    assert str(caught.value).startswith("--serve-args: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("json", ["{", "{method: eagle3}", '{"a": 1, "a": 2}', '{"a": NaN}', "", "nul"])
def test_json_that_is_none_names_the_flag(json):
    with pytest.raises(UsageError, match=r"--speculative-config: .*quote the JSON"):
        read_arguments(f"--speculative-config '{json}'")


def test_dotted_flags():
    text = "--speculative-config.a.b 1 --speculative-config.a.c x --speculative-config.d+ 1,2"
    assert read_arguments(text).speculative == {"a": {"b": 1, "c": "x"}, "d": ["1", "2"]}


SCRIPT = """#!/bin/bash
# what we serve; don't use --speculative-num-steps 9
export SGLANG_SIMULATE_ACC_LEN=2
python -m sglang.launch_server \\
    --speculative-num-steps 3 \\
    --speculative-eagle-topk 1  # a chain
"""


@pytest.mark.parametrize("spelling", ["@{}", "{}", " {} "])
def test_a_script(tmp_path, spelling):
    path = tmp_path / "serve.sh"
    path.write_text(SCRIPT)
    arguments = read_arguments(spelling.format(path))
    assert arguments.source == str(path)
    assert [item.value for item in arguments.flags[-2:]] == ["3", "1"]
    assert arguments.environment["SGLANG_SIMULATE_ACC_LEN"] == "2"


@pytest.mark.parametrize("name", ["config.yaml", "config"])
def test_yaml_options_are_flags(tmp_path, name):
    path = tmp_path / name
    path.write_text(
        "# vLLM\nspeculative-config:\n  method: eagle3\n  num_speculative_tokens: 3\n"
        "port: 80\nenforce-eager: true\nx: false\n"
    )
    arguments = read_arguments(f"@{path}")
    assert arguments.speculative == {"method": "eagle3", "num_speculative_tokens": 3}
    assert arguments.flags == (Flag("--port", "80"), Flag("--enforce-eager"))
    assert arguments.families() == {"vllm"}


def test_a_config_that_the_command_line_names_is_read_and_loses_to_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("speculative_config: {method: eagle3, num_speculative_tokens: 3}\nport: 80\n")
    arguments = read_arguments(f"vllm serve M --config {path} --port 81")
    assert arguments.speculative == {"method": "eagle3", "num_speculative_tokens": 3}
    assert [item.value for item in arguments.flags if item.name == "--port"] == ["80", "81"]
    override = read_arguments(f'vllm serve M --config {path} -sc \'{{"method": "mtp"}}\'')
    assert override.speculative == {"method": "mtp"}


def test_a_config_that_a_file_names_is_not_read(tmp_path):
    secret, script = tmp_path / "secret.yaml", tmp_path / "serve.sh"
    secret.write_text("speculative_config: {method: eagle3}\n")
    script.write_text(f"vllm serve M --config {secret}\n")
    arguments = read_arguments(f"@{script}")
    assert arguments.speculative is None
    assert arguments.unread == (str(secret),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"--x 'y", "--x: the quote or backslash on line 1 is not closed"),
        ("a.txt", b"--speculative-num-steps x", "--speculative-num-steps: 'x' is not an integer"),
        ("a.txt", b"\xff\xfe", "byte 0 is not UTF-8"),
        ("a.yaml", b"a: [", "line 1: "),
        ("a.yaml", b"- 1\n", "not a mapping of options"),
        ("a.yaml", b"a: 1\na: 2\n", "line 2: the key 'a' is given twice"),
        ("a.yaml", b"x: &a [1]\ny: *a\n", "line 2: aliases are not read here"),
        ("a.yaml", b"a: &a {<<: *a}\n", "aliases are not read here"),
        ("a.yaml", b"a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("a.yaml", b"a: !!python/name:os.system\n", "could not determine a constructor"),
        ("a.yaml", b"a: " + b"[" * 40 + b"]" * 40, "nested deeper than 32"),
        ("a.yaml", b"a: [" + b"1," * 30_000 + b"]", "more than 20000 values"),
        ("a.yaml", b"a: " + b"9" * 5000, "a value of more than 4096 characters"),
        ("a.yaml", b"a: 0x" + b"f" * 4000, "line 1: a number of more than 40 characters"),
        ("a.yaml", b"? {b: 1, b: 2}\n: 1\n", "line 1: the key 'b' is given twice"),
        ("a.yaml", b"a: 2001-99-99\n", "month must be in 1..12"),
        ("a.yaml", b"? [a]\n: 1\n", "unhashable key"),
        ("a.yaml", b"a: 1\n---\nb: 2\n", "line 2: "),
        ("a.yaml", b"a: \x00\n", "special characters are not allowed"),
        ("a.yaml", b"speculative_config: 7\n", "speculative_config: 7 is not a mapping"),
        ("a.json", b"[1]", "not a mapping of options"),
        ("a.json", b'{"a": 1, "a": 2}', "'a'"),
        ("a.json", b'{"speculative_config": "{"}', "--speculative-config"),
        ("a.json", b"[" * 100_000, "deep"),
    ],
)
def test_files_that_are_refused_with_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_arguments(f"@{path}")
    assert message in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_no_such_file(tmp_path):
    for text in (f"@{tmp_path / 'x'}", str(tmp_path / "options.yaml"), f"@{tmp_path}"):
        with pytest.raises(InputError):
            read_arguments(text)
    with pytest.raises(UsageError, match="is not a file name"):
        read_arguments("@a\0b")


def test_a_sparse_gigabyte_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "big.txt"
    with path.open("wb") as stream:
        stream.truncate(1024**3)
    started = time.perf_counter()
    with pytest.raises(InputError):
        read_arguments(f"@{path}")
    assert time.perf_counter() - started < 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_does_not_block(tmp_path):
    path = tmp_path / "pipe.txt"
    os.mkfifo(path)
    with pytest.raises(InputError, match="FIFO"):
        read_arguments(f"@{path}")


def test_a_billion_laughs(tmp_path):
    lines = ["a0: &a0 [lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 2: aliases are not read here"):
        read_arguments(f"@{path}")


def test_tags_run_nothing(tmp_path):
    path, witness = tmp_path / "a.yaml", tmp_path / "witness"
    path.write_text(f"a: !!python/object/apply:os.mkdir ['{witness}']\n")
    with pytest.raises(InputError):
        read_arguments(f"@{path}")
    assert not witness.exists()


def test_without_pyyaml_the_error_says_so(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    real = builtins.__import__

    def blocked(name, *args, **kwargs):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(InputError, match="needs PyYAML; `pip install pyyaml`"):
        read_arguments(f"@{path}")


@pytest.mark.parametrize("unit", ["a\\ ", "'a'", '"\\a"', "a b ", "--x ", "#", "=", "--speculative-x=1 "])
def test_a_mebibyte_takes_seconds_at_most(unit):
    text = (unit * (1024 * 1024 // len(unit)))[: 1024 * 1024]
    started = time.perf_counter()
    with contextlib.suppress(UsageError):
        read_arguments(text).families()
    assert time.perf_counter() - started < 5
