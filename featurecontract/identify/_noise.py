"""How noisy a slot is against what the probe's floor and the runtime's precision explain: `noise-above-floor`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featurecontract.identify._calibration import least_similarity
from featurecontract.identify._work import Work, add

if TYPE_CHECKING:
    from featurecontract.findings import Severity, SlotReading

__all__ = ["bits_of", "say_noise"]

# What an undeclared deployment usually is at most, and methods that do not say their bits.
USUAL_BITS = 4
PLAIN = re.compile(r"|none|no|false|(b?f(loat)?|fp)(16|32)|half|unquantized", re.IGNORECASE)
# The number in w4a16, q4_k_m, int4, nvfp4, fp8, 8bit. Methods that say none, such as gguf and awq, are usually of 4
# bits and may be of 2: that is no claim.
NUMBER = re.compile(r"(?:w|q|int|fp|nf|float|iq)_?([1-8])(?![0-9])|([1-8])[-_ ]?bit", re.IGNORECASE)


def bits_of(quantization: str) -> int | None:
    """Return the bits per weight that ``fp8`` or ``w4a16`` states, 16 for none; None for ``awq``, which states none."""
    if PLAIN.fullmatch(quantization.strip()):
        return 16
    found = NUMBER.search(quantization)
    return int(found[1] or found[2]) if found else None


def say_noise(work: Work, reading: SlotReading) -> None:
    """Say where a plane is right and noisier than its precision explains; above a note only against what was claimed.

    What the capture says of its runtime is taken at its word, then what the contract says of the target. Where neither
    says anything, a healthy server of few bits looks the same as a damaged one, so it is a note.
    """
    feature = reading.feature
    # Only what was matched has a margin: an empty slot, a rotated one and a part of a sum have findings of their own.
    if feature.boundary in (None, 0) or not reading.margin or reading.confidence < work.confidence:
        return
    declared = work.quantization or work.contract.target.quantization or ""
    stated = bits_of(declared)
    bits = USUAL_BITS if stated is None else stated
    if work.dtype.startswith(("float8", "fp8", "int8")):
        bits = min(bits, 8)
    expected = least_similarity(bits, floor=work.probe.floor)
    if reading.similarity >= expected:
        return
    # A contract without a word on quantisation is no claim that the server has none; a capture's "none" is.
    claimed = bool(declared) and stated is not None
    severity: Severity = "warning"
    said = f"{declared} explains" if claimed and bits < 16 else "a runtime that quantises nothing explains"  # noqa: PLR2004
    if not claimed:
        severity = "note"
        usual = least_similarity(USUAL_BITS, floor=work.probe.floor)
        if reading.similarity < usual:
            expected, said = usual, f"even {USUAL_BITS} bits explain"
    add(
        work,
        "noise-above-floor",
        f"slot {reading.slot} is {feature} with a similarity of {reading.similarity:.2f}; {said} "
        f"{expected:.2f} and more",
        (reading.slot,),
        severity=severity,
        expected=round(expected, 4),
        actual=round(reading.similarity, 4),
        details={"similarity": reading.similarity, "expected": expected, "floor": work.probe.floor},
        next_step="state target.quantization in the contract if the server's differs from the probe's, or record the "
        "probe on the served target; else look for a lossy transfer or a kernel fault",
    )
