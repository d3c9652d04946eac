"""The thresholds of identification, in one table, each with the measurement behind it (docs/identification.md).

Calibrated on simulated weight noise of SmolLM2-135M, and confirmed on a second model, never by resampling rows:
quantisation error is common to all rows, and a row bootstrap is certain when it is wrong.
"""

from __future__ import annotations

import math

__all__ = ["Limits", "confidence_of", "least_row", "least_similarity", "scale_tolerance"]


class Limits:
    """The numbers that decide; all are of standardised similarity unless they say otherwise."""

    # Fewer rows than this do not standardise a channel.
    FEWEST_ROWS = 12
    # A capture that ends before this part of the probe says so.
    REACHED = 0.75
    # Passes of at least so many rows are also looked at each by itself.
    ROWS_APART = 32
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
    # And where rows agree well: nearer to another row, and off its own by more than this times the root of what the
    # median row lacks, a tenth at least. Healthy rows of like context are off by 1.0 of it at most.
    UNSETTLED_ROW = 1.2
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
    # Blocks of columns that are looked at apart, none narrower than this; a block this much less alike than the others
    # is something else. Healthy ones stay above 0.89 of the median at int4, and 0.80 at int3 (SmolLM2; second model:
    # 0.96).
    COLUMN_BLOCKS, LEAST_COLUMNS, COLUMN_DROP = 16, 16, 0.5
    # A row this many times larger or smaller than its plane's, beside the others: at fp8 healthy ones reach 1.9; at
    # int4 two of 63 rows are beyond it at most (SmolLM2, 12 roundings of two levels, every boundary).
    ROW_SIZE = 2.5
    # Usual agreement of rows from which one wrong row is one; below, this many are needed.
    CLEAN_ROW, NOISY_ROWS = 0.95, 3


def least_row(usual: float) -> float:
    """Return the agreement with its own plane that a row of a slot stays above, where rows usually have ``usual``.

    Healthy rows (six roundings, nine slots): 0.87 at fp8 where rows usually have 0.99; the second lowest 0.32 at int4
    in groups (0.83) and 0.17 at int4 per row (0.75). Rows of another token have 0 and little more.
    """
    return usual * (1.0 - max(0.2, 1.8 * math.sqrt(max(0.0, 1.0 - usual))))


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

    Weight noise changes sizes too, by more the more it turns rows: over four levels, 20 dithered roundings and every
    boundary, factors reach 1.01 at a similarity of 0.998, 1.03 at 0.99, 1.05 at 0.96, 1.08 at 0.85 and 1.24 at 0.65
    (SmolLM2-135M), 1.03 at 0.98 (second model); a dozen rows of a capture say it less well than all. So a twentieth is
    seen under bfloat16, and a third under int4.
    """
    spread = min(0.29, 0.03 + 0.45 * math.sqrt(max(0.0, 1.0 - similarity)))
    return (math.exp(-spread), math.exp(spread))
