"""The thresholds of identification, in one table, each with the measurement behind it (docs/identification.md).

Calibrated on simulated weight noise of SmolLM2-135M, and confirmed on a second model, never by resampling rows:
quantisation error is common to all rows, and a row bootstrap is certain when it is wrong.
"""

from __future__ import annotations

__all__ = ["Limits", "confidence_of"]


class Limits:
    """The numbers that decide; all are of standardised similarity unless they say otherwise."""

    # Fewer rows than this do not standardise a channel.
    FEWEST_ROWS = 12
    # More rows than this add nothing: 64 name every boundary as well as 256 do (docs/identification.md).
    MOST_ROWS = 128
    # s >= 0.4 and u >= 0.3 let none of 775 wrong identifications pass among 7,192 (DESIGN, section 7).
    SIMILARITY = 0.4
    MARGIN = 0.3
    # A row that agrees this much less with its own probe row than the median row does is wrong, not noisy.
    ROW_DROP = 0.3
    # The same for a row under noise that is nearer to another probe row than to its own: healthy ones of int3 in groups
    # stay above 0.48 (SmolLM2, 256 rows, three roundings), rows that are another's fall to 0.4 and less.
    NOISY_ROW_DROP = 0.5
    # Median row agreement below which a single bad row is taken for noise.
    CLEAN_ROWS = 0.8
    # The part of the rows that must agree on one map before it is believed.
    ROW_MAJORITY = 0.6
    # Row-Gram correlation above which rows have the golden geometry in another basis.
    GRAM = 0.7
    # Similarity below which directions are gone: a rotated basis measures 0.046 at most on SmolLM2 (best of all
    # planes), the right plane at int3 per row 0.145 and more, with a row-Gram correlation like a rotated one's.
    ROTATED = 0.1
    # Rows must differ this much in size (deviation of the log) before equal sizes mean a norm ...
    NORM_SPREAD = 0.01
    # ... and by this much less behind one: bfloat16 rounding leaves a few thousandths.
    NORM_RATIO = 0.25
    # Part of the MLP's output, relative to the residual's, that is one rank's share: a half measures 0.34 to 0.56 up to
    # int4 per row, a whole 0.72 and more, none 0.14 at most.
    PARTIAL = (0.2, 0.64)
    # Below this similarity the ratio is noise as well.
    PARTIAL_SIMILARITY = 0.55


def confidence_of(similarity: float, margin: float) -> float:
    """Return the confidence 0..1 of a best match: 0.9 exactly where the measured rule begins to hold."""
    if similarity <= 0 or margin <= 0:
        return 0.0
    weakest = min(similarity / Limits.SIMILARITY, margin / Limits.MARGIN)
    if weakest < 1:
        return 0.9 * weakest * 0.99
    # Beyond the rule, certainty grows with the distance to it and never reaches 1.
    return min(0.999, 0.9 + 0.099 * (1 - 1 / weakest**2))


# The least similarity of the right plane by bits per weight, over every boundary from h[1] on, four roundings, captured
# in bfloat16. Measured least values on SmolLM2-135M: 16 bits 1.000, fp8 0.991, int8 0.998, int4 in groups of 64 0.73,
# int4 per row 0.585, int3 in groups 0.28, its median 0.47. Two bits and three explain anything.
LEAST_SIMILARITY = {16: 0.97, 8: 0.95, 7: 0.9, 6: 0.85, 5: 0.7, 4: 0.5}
# A deeper target is noisier in its own dtype too: this many times the probe's own floor is still explained.
FLOOR_FACTOR = 10.0
LEAST_PLAIN = 0.8


def least_similarity(bits: int, *, floor: float) -> float:
    """Return the similarity that weights of so many bits stay above; ``floor`` is the probe's own."""
    explained = max(LEAST_PLAIN, 1 - FLOOR_FACTOR * (1 - floor))
    return min(LEAST_SIMILARITY.get(bits, 0.0), explained)


def scale_tolerance(similarity: float) -> tuple[float, float]:
    """Return the factors between which a slice counts as unscaled, by how noisy it is.

    Healthy norm ratios reach 0.94 to 1.13 at int4 (DESIGN, section 7); 0.97 to 1.03 hold at bfloat16.
    """
    if similarity >= 0.98:  # noqa: PLR2004 - bfloat16 and fp8 stay above
        return (0.97, 1.03)
    return (0.8, 1.25)
