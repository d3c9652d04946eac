"""The fixture ``feature_capture``: one step of the user's own engine, captured and held against the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from featurecontract.errors import FeatureContractError, InputError
from featurecontract.plugin._observed import missing_library
from featurecontract.plugin._texts import block, one_line
from featurecontract.render._view import is_failing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import NoReturn

    from typing_extensions import Self

    from featurecontract.capture import Recording, tag
    from featurecontract.findings import Report
    from featurecontract.plugin._check import Check

__all__ = ["FeatureCapture", "Shot"]


class FeatureCapture:
    """What the fixture gives: call it with what to tap, and use the result in ``with``."""

    def __init__(self, check: Check, node_id: str, unchecked: Callable[[str], None]) -> None:
        """Keep the checkpoint's check, the test, and how to say that its failure is a could-not-check."""
        self._check = check
        self._node_id = node_id
        self._unchecked = unchecked
        self._shots: list[Shot] = []

    def __call__(
        self,
        *taps: Any,
        phase: str = "",
        runtime: str = "",
        save: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> Shot:
        """Prepare to capture what enters some places during the ``with`` that follows; at its end it is verified.

        Args:
            taps: The projection as a module, or `featurecontract.capture.Tap` values.
            phase: ``prefill``, ``decode``, ...: the phase of the tag that holds at first.
            runtime: ``NAME`` or ``NAME==VERSION`` of the engine, for the report.
            save: Also write the capture into this directory, whether or not it holds.
            keywords: ``rank``, ``stage``, ``max_rows``, ``max_bytes``, ``keep``, ``graphs`` of
                `featurecontract.capture.capturing`.
        """
        try:
            from featurecontract.capture import capturing

            contract = self._check.contract
            if contract.probe is None:
                raise InputError.single(
                    str(self._check.subject.path),
                    "the contract has no probe",
                    next_step="record one with `featurecontract record MODEL --out CKPT`",
                    slug="probe-missing",
                )
            recording = capturing(*taps, contract=contract, runtime=runtime, **keywords)
        except (FeatureContractError, ImportError) as error:
            refused = error
        else:
            number = len(self._shots)
            shot = Shot(
                recording,
                list(contract.probe.token_ids),
                verify=lambda: self._verify(recording, number),
                refuse=self._refuse,
                phase=phase,
                save=save,
            )
            self._shots.append(shot)
            return shot
        return self._refuse(refused)

    def finish(self, *, passed: bool) -> None:
        """End the test: one that passed, asked for the fixture and verified nothing proves nothing."""
        if passed and not any(shot.report for shot in self._shots):
            pytest.fail(
                "could not check (nothing-captured): the test asked for feature_capture and verified nothing; write "
                "`with feature_capture(engine.fc) as shot: engine.prefill(shot.token_ids)`",
                pytrace=False,
            )

    def _verify(self, recording: Recording, number: int) -> Report:
        try:
            report = self._check.verification()(capture=recording.capture())
        except (FeatureContractError, ImportError) as error:
            refused = error
        else:
            return self._judge(report, number)
        return self._refuse(refused)

    def _judge(self, report: Report, number: int) -> Report:
        name = f"feature_capture {self._node_id}"
        self._check.add(name if number == 0 else f"{name} {number + 1}", report)
        failed = [block(report, item) for item in report.findings if is_failing(item, report)]
        unchecked = [block(report, item) for item in report.findings if item.unchecked]
        if failed or unchecked:
            if not failed:
                self._unchecked(self._node_id)
            pytest.fail("\n\n".join((*failed, *unchecked)), pytrace=False)
        return report

    def _refuse(self, error: FeatureContractError | ImportError) -> NoReturn:
        if isinstance(error, ImportError):
            error = missing_library(error)
        if not isinstance(error, InputError):
            error = InputError.single("feature_capture", str(error), slug="nothing-captured")
        self._unchecked(self._node_id)
        pytest.fail(one_line(error), pytrace=False)


class Shot:
    """One capture, from the beginning of its ``with`` to the end, or to `verify`.

    Attributes:
        token_ids: The tokens of the contract's probe: send these through the engine, as one sequence from position 0.
        report: The report, None before it was verified.
    """

    def __init__(
        self,
        recording: Recording,
        token_ids: list[int],
        *,
        verify: Callable[[], Report],
        refuse: Callable[[FeatureContractError], NoReturn],
        phase: str,
        save: str | os.PathLike[str] | None,
    ) -> None:
        """Keep what to record; nothing is tapped yet."""
        self.token_ids = token_ids
        self.report: Report | None = None
        self._recording = recording
        self._verify = verify
        self._refuse = refuse
        self._phase = phase
        self._save = save
        self._tag: tag | None = None

    def tag(self, **facts: Any) -> tag:
        """Say what is known of the next calls, in place of the probe's tokens; as `featurecontract.capture.tag`."""
        from featurecontract.capture import tag

        return tag(**facts)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write what was captured so far into a directory and return the path of its JSON file."""
        return self._recording.save(directory)

    def verify(self) -> Report:
        """End the capture and verify it: return the report, or fail the test with what is wrong."""
        self._end()
        if self.report is None:
            unsaved = self._saved()
            # A capture that violates the contract is that, whether or not it could be kept.
            self.report = self._verify()
            if unsaved is not None:
                self._refuse(unsaved)
        return self.report

    def _saved(self) -> FeatureContractError | None:
        """Save where the test asked for it, and return why that failed."""
        if self._save is not None:
            try:
                self.save(self._save)
            except FeatureContractError as error:
                return error
        return None

    def __enter__(self) -> Self:
        """Attach the taps and say that what follows are the probe's tokens."""
        from featurecontract.capture import tag

        try:
            self._recording.attach()
        except FeatureContractError as error:
            refused = error
        else:
            self._tag = tag(token_ids=self.token_ids, phase=self._phase)
            return self
        return self._refuse(refused)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach and, where the engine raised nothing and `verify` was not called, verify."""
        self._end()
        if kind is None:
            self.verify()

    def _end(self) -> None:
        self._recording.detach()
        if self._tag is not None:
            self._tag.__exit__(None, None, None)
            self._tag = None
