"""What travels in place of the rows of a sparse gradient; needs no TensorFlow."""

from __future__ import annotations

import enum


class Tables(enum.Enum):
    """What a table must hold, so that an update by it is that by the rows themselves.

    A table has as many rows as the variable. Each of them holds sums over all rows of its number.

    Attributes:
        NONE: no sums would do, so rows travel.
        SUMS: the sums of the rows.
        SQUARES: also the sums of their squares, and how many they are.
        MAGNITUDES: also the sums of their magnitudes, and how many they are.
    """

    NONE = "none"
    SUMS = "sums"
    SQUARES = "squares"
    MAGNITUDES = "magnitudes"

    def row_bytes(self, width: int, itemsize: int) -> int:
        """The bytes of a row of such a table. Beside sums of squares, numbers are not half ones.

        Args:
            width: how many numbers a row of the variable has.
            itemsize: the bytes of each of these.
        """
        if self is Tables.SUMS:
            return width * itemsize
        return (2 * width + 1) * max(itemsize, 4)
