"""Wrapping a trainer's functions: what is called behind them, failures, and putting everything back."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from featurecontract.errors import UsageError
from featurecontract.trainers import Attachment, attach_modelopt, attach_specforge, attach_speculators, trainer_callback


class Base:
    def save(self, where):
        """Save."""
        return f"saved {where}"


class Child(Base):
    pass


def test_behind_a_function_and_back(caplog):
    original = Base.save
    seen = []
    with Attachment() as attachment:
        attachment.after(Base, "save", lambda result, self, where: seen.append((result, type(self).__name__, where)))
        attachment.after(Child, "save", lambda *_args: seen.append("child"))
        assert Child().save("x") == "saved x"
        assert Base.save.__doc__ == "Save."
    assert seen == [("saved x", "Child", "x"), "child"]
    assert Base.save is original
    assert "save" not in vars(Child)
    assert not caplog.records


def test_a_failure_behind_it_is_logged_once(caplog):
    def fail(*_args):
        raise ValueError("two\nlines")

    with Attachment() as attachment, caplog.at_level(logging.WARNING, "featurecontract.trainers"):
        attachment.after(Base, "save", fail)
        assert [Base().save("x"), Base().save("y")] == ["saved x", "saved y"]
    assert len(caplog.records) == 1
    assert attachment.failure == "ValueError: two lines"
    with Attachment(strict=True) as attachment:
        attachment.after(Base, "save", fail)
        with pytest.raises(ValueError, match="two"):
            Base().save("x")


def test_a_failure_of_the_trainer_itself_is_its_own():
    seen = []
    with Attachment() as attachment:
        attachment.after(Base, "save", lambda *_args: seen.append(1))
        with pytest.raises(TypeError):
            Base().save()
    assert not seen


@pytest.mark.parametrize(
    ("attach", "module", "match"),
    [
        (attach_speculators, "speculators.model", "needs speculators"),
        (lambda: attach_specforge(target="t"), "specforge.export", "needs specforge"),
        (attach_modelopt, "modelopt.torch.export", "needs nvidia-modelopt"),
        (lambda: trainer_callback(target="t", wiring="0,3"), "transformers", "needs transformers"),
    ],
)
def test_a_library_that_is_missing_is_one_line(attach, module, match, monkeypatch):
    for name in (module, module.split(".")[0]):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=match):
        attach()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["nobody"], "invalid choice"),
        (["specforge"], "specforge needs --target"),
        (["speculators", "--", "train"], "is not installed here"),
    ],
)
def test_the_launcher_refuses_in_words(arguments, match):
    command = [sys.executable, "-m", "featurecontract.trainers", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert match in done.stderr
    assert "Traceback" not in done.stderr
